"""Routes that change, resize, pause, resume, cancel, retry, archive and delete a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from accordion_service.api.app_state import AppState
from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.conditions import ETAG, IfMatch, check_if_match, format_etag
from accordion_service.api.deps import NO_QUERY, WRITES_ROWS, JobId, StateDep
from accordion_service.api.priorities import check_priority
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import Caller, Scope
from accordion_service.schemas.jobs import JobChange, JobView, ResizeRequest
from accordion_service.store.engine.database import Database
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A request to change the job of the path."""

    job_id: str
    response: Response
    state: AppState
    caller: Caller
    if_match: str | None

    @property
    def store(self) -> tuple[Database, Callable[[], float], Caller]:
        """What the writers of the store are made of."""
        return self.state.database, self.state.clock, self.caller

    @property
    def grace_s(self) -> float:
        """Seconds that workers have to save their state."""
        return self.state.settings.cancel_grace_s

    def check(self, job: JobRow) -> None:
        """Check that the job still has the ETag that the request names."""
        check_if_match(self.if_match, job)

    def show(self, job: JobRow) -> JobView:
        """Return the changed job with its new ETag."""
        self.response.headers["ETag"] = format_etag(job)
        return job_view(job)


async def _read_change(
    job_id: JobId,
    *,
    response: Response,
    state: StateDep,
    caller: CallerDep,
    if_match: IfMatch = None,
) -> _Change:
    return _Change(job_id=job_id, response=response, state=state, caller=caller, if_match=if_match)


_ChangeDep = Annotated[_Change, Depends(_read_change)]


@router.patch("", responses={200: {"headers": ETAG}, **describe_problems(400, 415)})
def change_job(request: JobChange, change: _ChangeDep) -> JobView:
    """Change the name, the labels or the priority of a job, a guest run, or an ended job."""
    if request.priority is not None:
        check_priority(change.state, change.caller, request.priority, pointer="/priority")
    listing = ListingChange(**request.model_dump())
    lifecycle = JobLifecycle(*change.store)
    return change.show(lifecycle.change_listing(change.job_id, listing, check=change.check))


@router.delete("", responses={200: {"headers": ETAG}})
def delete_job(change: _ChangeDep) -> JobView:
    """Delete a job or guest run that has ended, with its history, logs and checkpoints, and return
    it as it was. The scheduler removes the files soon after. The audit log keeps its entries.
    """
    return change.show(JobDeletion(*change.store).delete_job(change.job_id, change.check))


@router.post("/resize", status_code=202, responses={**_ACCEPTED, **describe_problems(400, 415)})
def resize(request: ResizeRequest, change: _ChangeDep) -> JobView:
    """Change how many workers a job may have. Repeating the request has no effect.

    The scheduler allocates as many as fit beside the other jobs, from `min` to `max`. A running job
    switches at a step boundary and loses no step; a queued or paused job starts with the new
    limits.
    """
    lifecycle = JobLifecycle(*change.store)
    return change.show(
        lifecycle.resize(change.job_id, request.min, request.max, check=change.check)
    )


@router.post("/pause", status_code=202, responses=_ACCEPTED)
def pause(change: _ChangeDep) -> JobView:
    """Pause a job: its workers save a checkpoint and stop, which frees their resources. Repeating
    the request has no effect.
    """
    lifecycle = JobLifecycle(*change.store)
    return change.show(lifecycle.pause(change.job_id, change.check, grace_s=change.grace_s))


@router.post("/resume", status_code=202, responses=_ACCEPTED)
def resume(change: _ChangeDep) -> JobView:
    """Resume a paused job: it is queued, and continues from its checkpoint. Repeating the request
    has no effect.
    """
    return change.show(JobLifecycle(*change.store).resume(change.job_id, change.check))


@router.post("/cancel", status_code=202, responses=_ACCEPTED)
def cancel(change: _ChangeDep) -> JobView:
    """Cancel a job: at once if nothing runs, otherwise after its workers have saved a checkpoint.

    A guest run can be cancelled only if it is LOST, which ends its record. Repeating the request
    has no effect.
    """
    lifecycle = JobLifecycle(*change.store)
    return change.show(lifecycle.cancel(change.job_id, change.check, grace_s=change.grace_s))


@router.post("/retry", status_code=202, responses=_ACCEPTED)
def retry(change: _ChangeDep) -> JobView:
    """Retry a job that failed or was cancelled: it is queued, and a new attempt continues from its
    newest checkpoint, or starts again if there is none. The failure budget and the training time
    are reset; overrides that ended with the job stay ended. It is no longer archived. Repeating the
    request has no effect.
    """
    return change.show(JobLifecycle(*change.store).retry(change.job_id, change.check))


@router.post("/archive", responses={200: {"headers": ETAG}})
def archive(change: _ChangeDep) -> JobView:
    """Archive a job or guest run that has ended: lists leave it out from now on. Its history and
    files stay until `ACCORDION_JOB_RETENTION_S` deletes them; `ACCORDION_MAX_ENDED_JOBS` neither
    counts nor deletes it. Repeating the request has no effect.
    """
    return change.show(JobArchive(*change.store).archive(change.job_id, change.check))


@router.post("/unarchive", responses={200: {"headers": ETAG}})
def unarchive(change: _ChangeDep) -> JobView:
    """Unarchive a job: lists show it again. Repeating the request has no effect."""
    return change.show(JobArchive(*change.store).unarchive(change.job_id, change.check))
