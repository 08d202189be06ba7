"""FastAPI dependencies: application state, the job of the path, admission of writes.

Dependencies that do not block are `async`: a plain function would occupy a thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request

from accordion_service.api.app_state import AppState
from accordion_service.api.callers import CallerDep
from accordion_service.errors import NotFound, Unavailable
from accordion_service.schemas.queries import QueryParams
from accordion_service.store.tables.models import JobRow


async def _refuse_query(query: Annotated[QueryParams, Query()]) -> None:
    """Reject query parameters on a route that has none."""


NO_QUERY: Any = Depends(_refuse_query)


async def _state(request: Request) -> AppState:
    """Return the state that `create_app` assembled."""
    state: AppState = request.app.state.accordion
    return state


StateDep = Annotated[AppState, Depends(_state)]


JobId = Annotated[
    str, Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9-]+$", description="ID of the job")
]


def _find_job(job_id: JobId, state: StateDep, caller: CallerDep) -> JobRow:
    """Return the job named in the path.

    Raises:
        NotFound: no job has that ID, or the caller may not see it.
    """
    job = state.jobs.get(job_id)
    if job is None or not caller.may_see(job.owner):
        raise NotFound(
            f"there is no job with the ID {job_id}; 'accordion list' (GET /api/v1/jobs) lists all"
        )
    return job


JobDep = Annotated[JobRow, Depends(_find_job)]


async def _refuse_while_draining(state: StateDep) -> None:
    """Reject writes while the process is shutting down.

    Raises:
        Unavailable: the process is shutting down.
    """
    if state.draining.is_set():
        raise Unavailable("the service is shutting down; try again in a moment")


WRITES: Any = Depends(_refuse_while_draining)
"""Dependency of routes that accept data."""


async def _hold_write_slot(state: StateDep) -> AsyncIterator[None]:
    """Hold one of the write slots for the duration of the request.

    Raises:
        Unavailable: no slot became free in time.
    """
    async with state.write_slots.slot():
        yield


WRITES_ROWS: tuple[Any, ...] = (WRITES, Depends(_hold_write_slot))
"""Dependencies of routes that write to the database."""
