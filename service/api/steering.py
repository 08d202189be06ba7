"""What people ask of a job that is there: resize, pause, resume, cancel."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response

from service.api.conditions import ETAG, IfMatch, check_if_match, etag
from service.api.deps import NO_QUERY, WRITES_ROWS, JobId, PartsDep
from service.api.problems import problems
from service.api.schemas import JobView, ResizeRequest
from service.api.views import job_view
from service.store.models import JobRow
from service.store.steering import Steering

router = APIRouter(
    prefix="/jobs/{job_id}",
    tags=["jobs"],
    dependencies=[NO_QUERY, *WRITES_ROWS],
    responses={202: {"headers": ETAG}, **problems(404, 409, 412)},
)


@router.post("/resize", status_code=202, responses=problems(400, 415))
def resize(
    job_id: JobId,
    wish: ResizeRequest,
    *,
    response: Response,
    parts: PartsDep,
    if_match: IfMatch = None,
) -> JobView:
    """Allow a job another number of workers, from `min` to `max`. Repeating is harmless.

    Within them the scheduler grants what fits beside the other jobs; a job that trains switches at
    a step boundary and loses no step. One that waits or is paused starts with the new numbers.
    """
    steering = Steering(parts.database, parts.clock)
    return _answer(steering.resize(job_id, wish.min, wish.max, check=_check(if_match)), response)


@router.post("/pause", status_code=202)
def pause(
    job_id: JobId, *, response: Response, parts: PartsDep, if_match: IfMatch = None
) -> JobView:
    """Let a job stand still: its workers save their state and go, and their room is free. Repeating
    is harmless.
    """
    steering = Steering(parts.database, parts.clock)
    return _answer(
        steering.pause(job_id, _check(if_match), grace_s=parts.settings.cancel_grace_s), response
    )


@router.post("/resume", status_code=202)
def resume(
    job_id: JobId, *, response: Response, parts: PartsDep, if_match: IfMatch = None
) -> JobView:
    """Let a paused job go on: it waits for room, then goes on from where it was. Repeating is
    harmless.
    """
    return _answer(Steering(parts.database, parts.clock).resume(job_id, _check(if_match)), response)


@router.post("/cancel", status_code=202)
def cancel(
    job_id: JobId, *, response: Response, parts: PartsDep, if_match: IfMatch = None
) -> JobView:
    """Cancel a job: at once where nothing runs, else its workers save their state and stop. Of
    guest runs, only a LOST one can be cancelled, which closes it here at once. Repeating is
    harmless.
    """
    steering = Steering(parts.database, parts.clock)
    return _answer(
        steering.cancel(job_id, _check(if_match), grace_s=parts.settings.cancel_grace_s), response
    )


def _check(if_match: str | None) -> Callable[[JobRow], None]:
    return lambda row: check_if_match(if_match, row)


def _answer(job: JobRow, response: Response) -> JobView:
    response.headers["ETag"] = etag(job)
    return job_view(job)
