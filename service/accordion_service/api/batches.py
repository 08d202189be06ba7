"""Route for actions on several jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter
from sqlalchemy.exc import DatabaseError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from accordion_service.api.app_state import AppState
from accordion_service.api.callers import CallerDep, check_scope, require_scope
from accordion_service.api.cursors import format_cursor, parse_cursor
from accordion_service.api.deps import NO_QUERY, WRITES_ROWS, StateDep
from accordion_service.api.priorities import check_priority
from accordion_service.api.problems import describe_problems, explain_crash, explain_database_error
from accordion_service.domain.access import Caller, Scope
from accordion_service.domain.jobs.status_table import ENDED, UNFINISHED
from accordion_service.domain.jobs.statuses import Desired, Kind, Status
from accordion_service.errors import ApiError, Conflict, DatabaseReplaced
from accordion_service.schemas.batches import (
    MAX_BATCH_S,
    MAX_JOBS,
    BatchItem,
    BatchRequest,
    BatchView,
    JobAction,
)
from accordion_service.schemas.queries import Archived
from accordion_service.store.reads.job_list import JobFilter, ListingState
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_documents import stored_labels
from accordion_service.store.writes.archiving import JobArchive
from accordion_service.store.writes.deletion import JobDeletion
from accordion_service.store.writes.steering import CheckJob, JobLifecycle, ListingChange

router = APIRouter(tags=["jobs"])
_PATH = "/job-actions"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changeable:
    """Which jobs an action changes."""

    statuses: Collection[Status]
    desired: tuple[Desired, ...] = ()
    """Requested states; empty for all."""
    archived: Archived = Archived.FALSE


_CHANGEABLE: Mapping[JobAction, _Changeable] = {
    JobAction.CANCEL: _Changeable(statuses=UNFINISHED, desired=(Desired.RUN, Desired.PAUSE)),
    JobAction.PAUSE: _Changeable(statuses=UNFINISHED, desired=(Desired.RUN,)),
    JobAction.RESUME: _Changeable(statuses=UNFINISHED, desired=(Desired.PAUSE,)),
    JobAction.ARCHIVE: _Changeable(statuses=ENDED),
    JobAction.UNARCHIVE: _Changeable(statuses=ENDED, archived=Archived.TRUE),
    JobAction.RETRY: _Changeable(statuses=(Status.FAILED, Status.CANCELLED)),
    JobAction.RESIZE: _Changeable(statuses=UNFINISHED, desired=(Desired.RUN, Desired.PAUSE)),
    JobAction.CHANGE: _Changeable(statuses=()),
    JobAction.DELETE: _Changeable(statuses=ENDED, archived=Archived.ANY),
}


@router.post(
    _PATH,
    dependencies=[require_scope(Scope.SUBMIT), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(400, 415),
)
def act_on_jobs(body: BatchRequest, state: StateDep, caller: CallerDep) -> BatchView:
    """Cancel, pause, resume, resize, retry, change, archive, unarchive or delete all jobs with some
    labels, each as its own route would. A job that cannot be changed does not stop the others.
    After 20 s, or an error of the database, `more` says that jobs are left.
    Repeating the request has no effect. Needs the scope `read` as well; jobs of other users are
    included with both `read:all` and `write:all`.
    """
    check_scope(caller, Scope.READ)
    if body.change is not None and body.change.priority is not None:
        check_priority(state, caller, body.change.priority, pointer="/change/priority")
    rows = state.jobs.find(_build_filter(body, caller))
    listed = rows[:MAX_JOBS]
    items = (
        [_describe_job(row) for row in listed]
        if body.dry_run
        else _change_jobs(state, caller, listed, body=body)
    )
    has_more = len(items) < len(rows)
    next_cursor = format_cursor(rows[len(items) - 1]) if has_more else None
    return BatchView(items=items, more=has_more, next_cursor=next_cursor)


def _build_filter(body: BatchRequest, caller: Caller) -> JobFilter:
    changeable = _CHANGEABLE[body.action]
    has_all = {Scope.READ_ALL, Scope.WRITE_ALL} <= caller.scopes
    return JobFilter(
        status=list(changeable.statuses),
        desired=list(changeable.desired),
        archived=changeable.archived,
        label=[f"{key}:{value}" for key, value in body.labels.items()],
        owner=body.owner,
        kind=Kind.JOB,
        ids=body.ids,
        unlike=_build_state(body),
        before=parse_cursor(body.cursor, "/cursor"),
        visible_to=None if has_all else caller.user,
        limit=MAX_JOBS + 1,
    )


def _build_state(body: BatchRequest) -> ListingState | None:
    """Return what the request would make of each job; None if its status says whether it is so."""
    if body.resize is not None:
        return ListingState(limits=(body.resize.min, body.resize.max))
    if body.change is not None:
        labels = list(body.change.labels.items())
        return ListingState(labels=labels, priority=body.change.priority)
    return None


def _change_jobs(
    state: AppState, caller: Caller, rows: Sequence[JobRow], *, body: BatchRequest
) -> list[BatchItem]:
    """Apply the action to jobs, until time is up, the service stops or its database fails: what was
    done until then must reach the caller.
    """
    items: list[BatchItem] = []
    ends_at = state.monotonic() + MAX_BATCH_S
    for row in rows:
        try:
            items.append(_describe_job(_apply_action(state, caller, row.id, body=body)))
        except DatabaseReplaced as error:
            items.append(_describe_job(row, str(error)))
            break
        except ApiError as error:
            items.append(_describe_job(row, str(error)))
        except (DatabaseError, PoolTimeout) as error:
            detail = explain_database_error(error)
            items.append(
                _describe_job(row, detail or explain_crash(_PATH, caller.request_id, error))
            )
            break
        if state.monotonic() >= ends_at or state.draining.is_set():
            break
    return items


def _apply_action(state: AppState, caller: Caller, job_id: str, *, body: BatchRequest) -> JobRow:
    """Apply the action of the request to one job.

    Raises:
        ApiError: the job does not allow it, or the request is no longer for it.
    """
    given = (state.database, state.clock, caller)
    lifecycle, archive = JobLifecycle(*given), JobArchive(*given)
    grace_s, check = state.settings.cancel_grace_s, partial(_check_job, body)
    calls: dict[JobAction, Callable[[str, CheckJob], JobRow]] = {
        JobAction.CANCEL: partial(lifecycle.cancel, grace_s=grace_s),
        JobAction.PAUSE: partial(lifecycle.pause, grace_s=grace_s),
        JobAction.RESUME: lifecycle.resume,
        JobAction.ARCHIVE: archive.archive,
        JobAction.UNARCHIVE: archive.unarchive,
        JobAction.RETRY: lifecycle.retry,
        JobAction.DELETE: JobDeletion(*given).delete_job,
    }
    if body.resize is not None:
        return lifecycle.resize(job_id, body.resize.min, body.resize.max, check=check)
    if body.change is not None:
        change = ListingChange(labels=body.change.labels, priority=body.change.priority)
        return lifecycle.change_listing(job_id, change, check=check)
    return calls[body.action](job_id, check)


def _check_job(body: BatchRequest, job: JobRow) -> None:
    """Check on the locked row that the request is still for the job.

    Raises:
        Conflict: it was changed after the jobs were listed.
    """
    labels = stored_labels(job)
    lost = [f"{key}:{value}" for key, value in body.labels.items() if labels.get(key) != value]
    if lost:
        named = f"label{'s' if len(lost) > 1 else ''} {' and '.join(lost)}"
        raise Conflict(f"job {job.id} no longer has the {named}, and is left as it is")
    if body.owner not in {None, job.owner}:
        raise Conflict(f"job {job.id} no longer belongs to {body.owner}, and is left as it is")
    is_for_archived = _CHANGEABLE[body.action].archived != Archived.FALSE
    if job.archived and not is_for_archived and body.action != JobAction.ARCHIVE:
        raise Conflict(
            f"job {job.id} was archived meanwhile, and is left as it is; unarchive it, and try"
            " again"
        )


def _describe_job(row: JobRow, error: str | None = None) -> BatchItem:
    return BatchItem.model_validate(
        {
            "id": row.id,
            "name": row.name,
            "owner": row.owner,
            "status": row.status,
            "error": error,
        }
    )
