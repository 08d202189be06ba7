"""Route for actions on several jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fastapi import APIRouter

from service.api.app_state import AppState
from service.api.batch_schemas import MAX_JOBS, BatchItem, BatchRequest, BatchView, JobAction
from service.api.callers import CallerDep, require_scope
from service.api.deps import NO_QUERY, WRITES_ROWS, StateDep
from service.api.problems import describe_problems
from service.domain.access import Caller, Scope
from service.domain.job_status import ENDED, UNFINISHED
from service.domain.jobs import Desired, Kind, Status
from service.errors import ApiError
from service.store.job_archive import JobArchive
from service.store.job_lifecycle import JobLifecycle, accept_any
from service.store.job_list import JobFilter
from service.store.models import JobRow

router = APIRouter(tags=["jobs"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changeable:
    """Which jobs an action changes."""

    statuses: Collection[Status]
    desired: tuple[Desired, ...] = ()
    """Requested states; empty for all."""
    archived: bool = False


_CHANGEABLE: Mapping[JobAction, _Changeable] = {
    JobAction.CANCEL: _Changeable(statuses=UNFINISHED, desired=(Desired.RUN, Desired.PAUSE)),
    JobAction.PAUSE: _Changeable(statuses=UNFINISHED, desired=(Desired.RUN,)),
    JobAction.RESUME: _Changeable(statuses=UNFINISHED, desired=(Desired.PAUSE,)),
    JobAction.ARCHIVE: _Changeable(statuses=ENDED),
    JobAction.UNARCHIVE: _Changeable(statuses=ENDED, archived=True),
}


@router.post(
    "/job-actions",
    dependencies=[require_scope(Scope.SUBMIT), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(400, 415),
)
def act_on_jobs(body: BatchRequest, state: StateDep, caller: CallerDep) -> BatchView:
    """Cancel, pause or resume all unfinished jobs with some labels, or archive or unarchive the
    ended ones, each as its own route would. A job that cannot be changed does not stop the others.
    Repeating the request has no effect.
    """
    changeable = _CHANGEABLE[body.action]
    wanted = JobFilter(
        statuses=[status.value for status in changeable.statuses],
        desired=[desired.value for desired in changeable.desired],
        archived=changeable.archived,
        labels=list(body.labels.items()),
        owner=body.owner,
        kind=Kind.JOB.value,
        visible_to=None if Scope.WRITE_ALL in caller.scopes else caller.user,
        limit=MAX_JOBS + 1,
    )
    rows = state.repository.jobs(wanted)
    items = [
        _describe_job(row) if body.dry_run else _change_job(state, caller, row, action=body.action)
        for row in rows[:MAX_JOBS]
    ]
    return BatchView(items=items, more=len(rows) > MAX_JOBS)


def _change_job(state: AppState, caller: Caller, row: JobRow, *, action: JobAction) -> BatchItem:
    lifecycle = JobLifecycle(state.database, state.clock, caller)
    archive = JobArchive(state.database, state.clock, caller)
    grace_s = state.settings.cancel_grace_s
    try:
        match action:
            case JobAction.CANCEL:
                changed = lifecycle.cancel(row.id, accept_any, grace_s=grace_s)
            case JobAction.PAUSE:
                changed = lifecycle.pause(row.id, accept_any, grace_s=grace_s)
            case JobAction.RESUME:
                changed = lifecycle.resume(row.id, accept_any)
            case JobAction.ARCHIVE:
                changed = archive.archive(row.id, accept_any)
            case JobAction.UNARCHIVE:
                changed = archive.unarchive(row.id, accept_any)
    except ApiError as error:
        return _describe_job(row, str(error))
    return _describe_job(changed)


def _describe_job(row: JobRow, error: str | None = None) -> BatchItem:
    return BatchItem.model_validate(
        {"id": row.id, "name": row.name, "status": row.status, "error": error}
    )
