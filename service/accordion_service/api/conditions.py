"""Request headers that make a request conditional: If-Match, Idempotency-Key, Last-Event-ID."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header

from accordion_service.errors import Invalid, PreconditionFailed
from accordion_service.store.tables.models import JobRow

IfMatch = Annotated[
    str | None,
    Header(max_length=200, description="ETag that the job must still have"),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="key of your choice, under which a repeated request has no effect; kept for a"
        " week",
    ),
]

ETAG = {
    "ETag": {
        "description": "version of the job's requested state",
        "schema": {"type": "string"},
    }
}
"""OpenAPI declaration of the ETag header of a response."""


def format_etag(job: JobRow) -> str:
    """Return the strong ETag of the requested state of a job. Progress does not change it."""
    return f'"{job.etag_version}"'


def check_if_match(given: str | None, job: JobRow) -> None:
    """Reject a write that is based on an older version of the job.

    Raises:
        PreconditionFailed: the job has another ETag now.
    """
    if given is None or given.strip() == "*":
        return
    if format_etag(job) not in [part.strip() for part in given.split(",")]:
        raise PreconditionFailed(
            f"If-Match is {given}, the job is at {format_etag(job)}; read it again and repeat"
        )


def last_event_id(given: str | None, newest: int) -> int | None:
    """Parse `Last-Event-ID`; None if the header is missing.

    Raises:
        Invalid: the value is not the number of an event of this job.
    """
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 16 and int(given) <= newest):
        raise Invalid(
            f"Last-Event-ID is {given!r}; it must be a number from 0 to {newest}",
            "header/last-event-id",
        )
    return int(given)
