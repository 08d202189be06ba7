"""Routes that change, resize, pause, resume, cancel, retry, archive and delete a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Response

from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.conditions import ETAG, IfMatch, check_if_match, format_etag
from accordion_service.api.deps import NO_QUERY, WRITES_ROWS, JobId, StateDep
from accordion_service.api.priorities import check_priority
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import Scope
from accordion_service.schemas.jobs import JobChange, JobView, ResizeRequest
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.archiving import JobArchive
from accordion_service.store.writes.deletion import JobDeletion
from accordion_service.store.writes.steering import JobLifecycle, ListingChange
from accordion_service.views.jobs import job_view

router = APIRouter(
    prefix="/jobs/{job_id}",
    tags=["jobs"],
    dependencies=[require_scope(Scope.SUBMIT), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(404, 409, 412),
)
_ACCEPTED: dict[int | str, dict[str, Any]] = {202: {"headers": ETAG}}


@router.patch("", responses={200: {"headers": ETAG}, **describe_problems(400, 415)})
def change_job(
    job_id: JobId,
    request: JobChange,
    *,
    response: Response,
    state: StateDep,
    caller: CallerDep,
    if_match: IfMatch = None,
) -> JobView:
    """Change the name, the labels or the priority of a job, a guest run, or an ended job."""
    lifecycle = JobLifecycle(state.database, state.clock, caller)
    if request.priority is not None:
        check_priority(state, caller, request.priority, pointer="/priority")
    change = ListingChange(**request.model_dump())
    return _build_response(
        lifecycle.change_listing(job_id, change, check=_match_condition(if_match)), response
    )


@router.delete("", responses={200: {"headers": ETAG}})
def delete_job(
    job_id: JobId,
    *,
    response: Response,
    state: StateDep,
    caller: CallerDep,
    if_match: IfMatch = None,
) -> JobView:
    """Delete a job or guest run that has ended, with its history, logs and checkpoints, and return
    it as it was. The scheduler removes the files soon after. The audit log keeps its entries.
    """
    deletion = JobDeletion(state.database, state.clock, caller)
    return _build_response(deletion.delete_job(job_id, _match_condition(if_match)), response)


@router.post("/resize", status_code=202, responses={**_ACCEPTED, **describe_problems(400, 415)})
def resize(
    job_id: JobId,
    request: ResizeRequest,
    *,
    response: Response,
    state: StateDep,
    caller: CallerDep,
    if_match: IfMatch = None,
) -> JobView:
    """Change how many workers a job may have. Repeating the request has no effect.

    The scheduler allocates as many as fit beside the other jobs, from `min` to `max`. A running job
    switches at a step boundary and loses no step; a queued or paused job starts with the new
    limits.
    """
    lifecycle = JobLifecycle(state.database, state.clock, caller)
    return _build_response(
        lifecycle.resize(job_id, request.min, request.max, check=_match_condition(if_match)),
        response,
    )


@router.post("/pause", status_code=202, responses=_ACCEPTED)
def pause(
    job_id: JobId,
    *,
    response: Response,
    state: StateDep,
    caller: CallerDep,
    if_match: IfMatch = None,
) -> JobView:
    """Pause a job: its workers save a checkpoint and stop, which frees their resources. Repeating
    the request has no effect.
    """
    lifecycle = JobLifecycle(state.database, state.clock, caller)
    return _build_response(
        lifecycle.pause(job_id, _match_condition(if_match), grace_s=state.settings.cancel_grace_s),
        response,
    )


@router.post("/resume", status_code=202, responses=_ACCEPTED)
def resume(
    job_id: JobId,
    *,
    response: Response,
    state: StateDep,
    caller: CallerDep,
    if_match: IfMatch = None,
) -> JobView:
    """Resume a paused job: it is queued, and continues from its checkpoint. Repeating the request
    has no effect.
    """
    return _build_response(
        JobLifecycle(state.database, state.clock, caller).resume(
            job_id, _match_condition(if_match)
        ),
        response,
    )


@router.post("/cancel", status_code=202, responses=_ACCEPTED)
def cancel(
    job_id: JobId,
    *,
    response: Response,
    state: StateDep,
    caller: CallerDep,
    if_match: IfMatch = None,
) -> JobView:
    """Cancel a job: at once if nothing runs, otherwise after its workers have saved a checkpoint.

    A guest run can be cancelled only if it is LOST, which ends its record. Repeating the request
    has no effect.
    """
    lifecycle = JobLifecycle(state.database, state.clock, caller)
    return _build_response(
        lifecycle.cancel(job_id, _match_condition(if_match), grace_s=state.settings.cancel_grace_s),
        response,
    )


@router.post("/retry", status_code=202, responses=_ACCEPTED)
def retry(
    job_id: JobId,
    *,
    response: Response,
    state: StateDep,
    caller: CallerDep,
    if_match: IfMatch = None,
) -> JobView:
    """Retry a job that failed or was cancelled: it is queued, and a new attempt continues from its
    newest checkpoint, or starts again if there is none. The failure budget and the training time
    are reset; overrides that ended with the job stay ended. It is no longer archived. Repeating the
    request has no effect.
    """
    return _build_response(
        JobLifecycle(state.database, state.clock, caller).retry(job_id, _match_condition(if_match)),
        response,
    )


@router.post("/archive", responses={200: {"headers": ETAG}})
def archive(
    job_id: JobId,
    *,
    response: Response,
    state: StateDep,
    caller: CallerDep,
    if_match: IfMatch = None,
) -> JobView:
    """Archive a job or guest run that has ended: lists leave it out from now on. Its history and
    files stay until `ACCORDION_JOB_RETENTION_S` deletes them; `ACCORDION_MAX_ENDED_JOBS` neither
    counts nor deletes it. Repeating the request has no effect.
    """
    jobs = JobArchive(state.database, state.clock, caller)
    return _build_response(jobs.archive(job_id, _match_condition(if_match)), response)


@router.post("/unarchive", responses={200: {"headers": ETAG}})
def unarchive(
    job_id: JobId,
    *,
    response: Response,
    state: StateDep,
    caller: CallerDep,
    if_match: IfMatch = None,
) -> JobView:
    """Unarchive a job: lists show it again. Repeating the request has no effect."""
    jobs = JobArchive(state.database, state.clock, caller)
    return _build_response(jobs.unarchive(job_id, _match_condition(if_match)), response)


def _match_condition(if_match: str | None) -> Callable[[JobRow], None]:
    return lambda row: check_if_match(if_match, row)


def _build_response(job: JobRow, response: Response) -> JobView:
    response.headers["ETag"] = format_etag(job)
    return job_view(job)
