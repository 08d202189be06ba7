"""Headers that a request's effect depends on: If-Match, Idempotency-Key, Last-Event-ID."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header

from service.errors import Invalid, PreconditionFailed
from service.store.models import JobRow

IfMatch = Annotated[
    str | None, Header(max_length=200, description="ETag that the job must still have")
]
IdempotencyKey = Annotated[
    str | None,
    Header(min_length=1, max_length=255, description="makes repeating the request harmless"),
]

ETAG = {"ETag": {"description": "version of what people asked for", "schema": {"type": "string"}}}
"""What a route declares as a header of its answer."""


def etag(job: JobRow) -> str:
    """Strong ETag of what people asked for; progress does not change it."""
    return f'"{job.etag_version}"'


def check_if_match(given: str | None, job: JobRow) -> None:
    """Refuse a write that was based on an older version.

    Raises:
        PreconditionFailed: the job has another ETag now.
    """
    if given is None or given.strip() == "*":
        return
    if etag(job) not in [part.strip() for part in given.split(",")]:
        raise PreconditionFailed(
            f"If-Match is {given}, the job is at {etag(job)}; read it again and repeat"
        )


def last_event_id(given: str | None, newest: int) -> int | None:
    """The number in `Last-Event-ID`; None where the header is missing.

    Raises:
        Invalid: it is no number of an event of this job.
    """
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 16 and int(given) <= newest):
        raise Invalid(
            f"Last-Event-ID is {given!r}; it must be a number from 0 to {newest}",
            "header/last-event-id",
        )
    return int(given)
