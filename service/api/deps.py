"""What routes are given: the parts of the process, and rows that exist.

What waits for nothing is `async`: a plain function would wait for a thread, and hold it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict

from service.api.parts import Parts
from service.errors import NotFound, Unavailable
from service.store.models import JobRow
from service.store.repository import Repository


class QueryParams(BaseModel):
    """Query parameters of a route; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")


async def _refuse_query(query: Annotated[QueryParams, Query()]) -> None:
    """A route without query parameters takes none."""


NO_QUERY: Any = Depends(_refuse_query)


async def _parts(request: Request) -> Parts:
    """The parts that `create_app` put together."""
    parts: Parts = request.app.state.parts
    return parts


PartsDep = Annotated[Parts, Depends(_parts)]


async def _repository(parts: PartsDep) -> Repository:
    """The reading side of the store."""
    return parts.repository


RepositoryDep = Annotated[Repository, Depends(_repository)]
JobId = Annotated[
    str, Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9-]+$", description="id of the job")
]


def _job(job_id: JobId, repository: RepositoryDep) -> JobRow:
    """The job of the path.

    Raises:
        NotFound: there is none of that id.
    """
    job = repository.job(job_id)
    if job is None:
        raise NotFound(f"there is no job {job_id}; GET /api/v1/jobs lists all")
    return job


JobDep = Annotated[JobRow, Depends(_job)]


async def _refuse_while_draining(parts: PartsDep) -> None:
    """Take no new work while the process is going down.

    Raises:
        Unavailable: it is.
    """
    if parts.draining.is_set():
        raise Unavailable("the service is going down; try again in a moment")


WRITES: Any = Depends(_refuse_while_draining)
"""For routes that take in something."""


async def _have_a_place(parts: PartsDep) -> AsyncIterator[None]:
    """Wait for the turn to write.

    Raises:
        Unavailable: it did not come in time.
    """
    async with parts.writers.place():
        yield


WRITES_ROWS: tuple[Any, ...] = (WRITES, Depends(_have_a_place))
"""For routes that write to the database."""
