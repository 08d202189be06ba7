"""Requests for existing jobs, each as one transaction: resize, pause, resume, cancel, retry, and
changes of name, labels and priority.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from accordion_service.domain.access import Caller
from accordion_service.domain.audit import AuditAction
from accordion_service.domain.capacity.waiting_message import WAITS_FOR_SCHEDULER, format_start
from accordion_service.domain.jobs.status_table import ENDED, HELD, is_transition_allowed
from accordion_service.domain.jobs.statuses import Desired, Kind, Reason, Status
from accordion_service.domain.overrides import transitions
from accordion_service.errors import Conflict, Forbidden, Invalid, NotFound
from accordion_service.store.engine.events import append_end_event, append_event, reopen_history
from accordion_service.store.reads.time_limits import describe_time_out, time_out_at
from accordion_service.store.tables.models import AttemptRow, JobRow
from accordion_service.store.tables.stored_documents import stored_labels, stored_ray_run
from accordion_service.store.tables.stored_spec import spec_of
from accordion_service.store.writes.caller_writes import CallerWrites
from accordion_service.store.writes.loggers import reopen_loggers
from accordion_service.store.writes.override_changes import (
    load_override_statuses,
    store_override_status,
)
from accordion_service.store.writes.status_changes import change_status
from accordion_workers.records.contract import JobSpec
from accordion_workers.spec.types import MAX_LABELS

CheckJob = Callable[[JobRow], None]
"""Raises if the caller's condition on the job (If-Match) does not hold; runs inside the
transaction.
"""
Change = Callable[[Session, JobRow], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingChange:
    """Changes of how a job is listed and queued; None changes nothing."""

    name: str | None = None
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """Labels to set, by key; None removes one."""
    priority: int | None = None


class JobLifecycle(CallerWrites):
    """Writes a caller's requests for one job; repeating a request changes nothing.

    Raises (every method): NotFound, if there is no such job, or the caller may not see it;
    Forbidden, if the caller may not change it; Conflict, if its state does not allow the request.
    """

    def resize(self, job_id: str, min_workers: int, max_workers: int, *, check: CheckJob) -> JobRow:
        """Allow the job `min_workers` to `max_workers`; the scheduler allocates a number between
        them.

        Raises:
            Invalid: `min_workers` exceeds `max_workers`, or the global batch cannot be divided
                among so many workers.
        """
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            _check_limits(job, min_workers, max_workers)
            data = {
                "what": "allowed",
                "min": min_workers,
                "max": max_workers,
                "world_size": job.world_size,
            }
            job.min_workers, job.max_workers = min_workers, max_workers
            job.orders_version += 1
            append_event(session, job, "workers", data=data, now=now, by=self._caller.user)

        return self._change_job(
            job_id,
            change,
            what="resized",
            check=check,
            is_asked=lambda job: (job.min_workers, job.max_workers) == (min_workers, max_workers),
        )

    def change_listing(self, job_id: str, change: ListingChange, *, check: CheckJob) -> JobRow:
        """Change name, labels and priority, also of guest runs and ended jobs.

        Raises:
            Invalid: the job would have too many labels.
        """
        with self._database.write() as session:
            job = lock_job(session, job_id, self._caller)
            check(job)
            before = _describe_listing(job)
            after: dict[str, Any] = {
                "name": job.name if change.name is None else change.name,
                "labels": _merge_labels(before["labels"], change.labels),
                "priority": job.priority if change.priority is None else change.priority,
            }
            if after != before:
                raise_versions(job)
                job.name, job.priority = after["name"], after["priority"]
                job.labels = after["labels"]
                self._record_listing(session, job, before=before, after=after)
            return job

    def pause(self, job_id: str, check: CheckJob, *, grace_s: float) -> JobRow:
        """Pause the job: at once if queued, else its workers have `grace_s` seconds to save."""
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            self._set_desired(job, Desired.PAUSE)
            set_status = partial(change_status, session, job, now=now, by=self._caller.user)
            if job.status == Status.QUEUED:
                message = "paused in the queue; resume it to queue it again"
                set_status(Status.PAUSED, reason=Reason.PAUSED_BY_USER, message=message)
                return
            if job.status != Status.PAUSING:
                job.orders_version += 1
                job.deadline = now + grace_s
            message = "saving a checkpoint; paused after that until you resume it"
            set_status(Status.PAUSING, reason=Reason.PAUSE_REQUESTED, message=message)

        return self._change_job(
            job_id,
            change,
            what="paused",
            check=check,
            is_asked=lambda job: job.desired == Desired.PAUSE,
        )

    def resume(self, job_id: str, check: CheckJob) -> JobRow:
        """Resume a paused job from its newest checkpoint; a pausing job pauses first."""
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            self._set_desired(job, Desired.RUN)
            if job.status == Status.PAUSED:
                self._queue_again(session, job, Reason.RESUMED, what="resumed", now=now)
                return
            message = "resumed while saving a checkpoint; returns to the queue when it is saved"
            set_status = partial(change_status, session, job, now=now, by=self._caller.user)
            set_status(Status.PAUSING, reason=Reason.RESUMED, message=message)

        return self._change_job(
            job_id,
            change,
            what="resumed",
            check=check,
            is_asked=lambda job: job.desired == Desired.RUN,
        )

    def retry(self, job_id: str, check: CheckJob) -> JobRow:
        """Queue a job that failed or was cancelled again; it continues from its newest checkpoint,
        with its failure budget and time limits reset. It is no longer archived. A job that was
        retried and has not ended does not change.

        Raises:
            Conflict: it has not ended and was never retried, or it succeeded.
        """
        now = self._clock()
        with self._database.write() as session:
            job = lock_job(session, job_id, self._caller)
            check(job)
            refuse_guest(job, "retried")
            status = Status(job.status)
            if job.retried_attempt is not None and status not in ENDED:
                return job
            if status not in ENDED or not is_transition_allowed(status, Status.QUEUED):
                raise Conflict(
                    f"job {job.id} is {status}; only a job that failed or was cancelled can be"
                    " retried; clone it to train it from the beginning"
                )
            raise_versions(job)
            before = {"status": job.status, **_describe_request(job)}
            reopen_history(session, job)
            reopen_loggers(session, job, now=now)
            self._set_desired(job, Desired.RUN)
            job.retried_attempt = job.attempt
            job.lost_attempts, job.trained_s, job.ended_at = 0, 0.0, None
            job.times_out_at = time_out_at(job, now)
            job.checkpoints_removed_at = job.history_removed_at = None
            if job.archived:
                job.archived = False
                data = {"archived": False}
                append_event(session, job, "archive", data=data, now=now, by=self._caller.user)
            self._queue_again(session, job, Reason.RETRIED, what="retried", now=now)
            self._record_request(session, job, "retried", before=before, now=now)
            return job

    def cancel(self, job_id: str, check: CheckJob, *, grace_s: float) -> JobRow:
        """Cancel the job: at once if no process runs, else its workers have `grace_s` seconds to
        save and stop.

        A guest run can be cancelled only if it is LOST; it ends at once.
        """
        now = self._clock()
        with self._database.write() as session:
            job = lock_job(session, job_id, self._caller)
            check(job)
            if job.desired == Desired.CANCEL:
                return job
            refuse_ended(job, "cancelled")
            if job.status != Status.LOST:
                refuse_guest(job, "cancelled")
            raise_versions(job)
            before = _describe_request(job)
            self._set_desired(job, Desired.CANCEL)
            self._record_request(session, job, "cancelled", before=before, now=now)
            if job.status in HELD | {Status.LOST}:
                _cancel_inactive(session, job, now, by=self._caller.user)
                return job
            job.orders_version += 1
            job.deadline = now + grace_s
            message = "the workers save their state and stop"
            set_status = partial(change_status, session, job, now=now, by=self._caller.user)
            set_status(Status.STOPPING, reason=Reason.CANCEL_REQUESTED, message=message)
            return job

    def _change_job(
        self,
        job_id: str,
        change: Change,
        *,
        what: str,
        check: CheckJob,
        is_asked: Callable[[JobRow], bool],
    ) -> JobRow:
        with self._database.write() as session:
            job = lock_job(session, job_id, self._caller)
            check(job)
            refuse_ended(job, what)
            refuse_guest(job, what)
            if job.desired == Desired.CANCEL:
                raise Conflict(f"job {job.id} is being cancelled and cannot be {what} any more")
            if job.status == Status.STOPPING:
                raise Conflict(
                    f"job {job.id} has reached its time limit, is being stopped, and cannot be"
                    f" {what} any more: {describe_time_out(job)}"
                )
            if not is_asked(job):
                raise_versions(job)
                before = _describe_request(job)
                change(session, job)
                self._record_request(session, job, what, before=before, now=self._clock())
            return job

    def _set_desired(self, job: JobRow, desired: Desired) -> None:
        job.desired, job.desired_by = desired.value, self._caller.user

    def _queue_again(
        self, session: Session, job: JobRow, reason: Reason, *, what: str, now: float
    ) -> None:
        """Queue a job on request of the caller, at once or at its `start_at`."""
        job.queued_at, message = now, WAITS_FOR_SCHEDULER
        if job.start_at is not None and job.start_at > now:
            reason, message = Reason.SCHEDULED, format_start(job.start_at)
        set_status = partial(change_status, session, job, now=now, by=self._caller.user)
        set_status(Status.QUEUED, reason=reason, message=f"{what}; {message}")

    def _record_listing(
        self, session: Session, job: JobRow, *, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        """Append the event, which has only what changed, and the entry of the audit log."""
        now, changed = self._clock(), [name for name in after if after[name] != before[name]]
        data = {
            "before": {name: before[name] for name in changed},
            "after": {name: after[name] for name in changed},
        }
        append_event(session, job, "change", data=data, now=now, by=self._caller.user)
        action = AuditAction.JOB_CHANGED
        self._append_audit(session, action, job.id, before=before, after=after, now=now)

    def _record_request(
        self, session: Session, job: JobRow, what: str, *, before: dict[str, Any], now: float
    ) -> None:
        """Append the entry of the audit log."""
        action, after = AuditAction(f"job.{what}"), _describe_request(job)
        self._append_audit(session, action, job.id, before=before, after=after, now=now)


def accept_any(_: JobRow) -> None:
    """Accept a job in any state: the condition of requests without one."""


def lock_job(session: Session, job_id: str, caller: Caller) -> JobRow:
    """Read and lock a job that the caller wants to change.

    Raises:
        NotFound: there is none, or the caller may not see it.
        Forbidden: the caller may not change it.
    """
    job = session.get(JobRow, job_id, with_for_update=True)
    if job is None or not caller.may_see(job.owner):
        raise NotFound(
            f"there is no job with the ID {job_id}; 'accordion list' (GET /api/v1/jobs) lists all"
        )
    if not caller.may_change(job.owner):
        raise Forbidden(
            f"job {job.id} belongs to user {job.owner!r}; to change jobs of other users, use a"
            " token with the scope 'write:all'"
        )
    return job


def _describe_listing(job: JobRow) -> dict[str, Any]:
    return {"name": job.name, "labels": stored_labels(job), "priority": job.priority}


def _merge_labels(labels: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged = {key: value for key, value in {**labels, **changes}.items() if value is not None}
    if len(merged) > MAX_LABELS:
        raise Invalid(
            f"the job would have {len(merged)} labels; at most {MAX_LABELS} are kept", "/labels"
        )
    return merged


def _describe_request(job: JobRow) -> dict[str, Any]:
    """Return what users asked of a job, for the audit log."""
    return {"desired": job.desired, "min": job.min_workers, "max": job.max_workers}


def raise_versions(job: JobRow) -> None:
    """Raise both versions for a user's request."""
    job.version += 1
    job.etag_version += 1


def refuse_ended(job: JobRow, what: str) -> None:
    """Check that a job may still be changed.

    Raises:
        Conflict: it has ended.
    """
    if Status(job.status) in ENDED:
        raise Conflict(f"job {job.id} is {job.status} and cannot be {what} any more")


def refuse_guest(job: JobRow, what: str) -> None:
    """Refuse an operation that a guest run does not support.

    Raises:
        Conflict: the job is a guest run.
    """
    if job.kind == Kind.GUEST:
        run = stored_ray_run(job)
        train_run = f" (Ray Train run {run.train_run})" if run is not None and run.train_run else ""
        raise Conflict(
            f"job {job.id} is a guest run and cannot be {what} here: its own Ray Train"
            f" script{train_run} runs it; change or stop the script where it was started"
        )


def _check_limits(job: JobRow, min_workers: int, max_workers: int) -> None:
    """Check the spec with the new numbers.

    Raises:
        Invalid: the spec rejects them; has its message.
        UnreadableSpec: this version rejects the stored spec.
    """
    before = spec_of(job)
    spec = before.model_dump(mode="json")
    try:
        JobSpec.model_validate(
            {**spec, "workers": {**spec["workers"], "min": min_workers, "max": max_workers}}
        )
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        # The check of parallelism is one of the whole spec, and begins with the minimum.
        is_min = item["loc"][-1:] == ("min",) or min_workers % before.num_shards
        pointer = "/min" if is_min else "/max"
        raise Invalid(item["msg"].removeprefix("Value error, "), pointer) from None


def _cancel_inactive(session: Session, job: JobRow, now: float, *, by: str) -> None:
    for row, old in load_override_statuses(session, job).values():
        new = transitions.end(old)
        store_override_status(session, job, row=row, old=old, new=new, now=now, by=by)
    message = f"cancelled while it was {job.status.lower()}"
    attempt = session.get(AttemptRow, (job.id, job.attempt)) if job.status == Status.LOST else None
    if attempt is not None:
        attempt.reason, attempt.message, attempt.ended_at = (
            Reason.CANCELLED_BY_USER.value,
            message,
            now,
        )
    set_status = partial(change_status, session, job, now=now, by=by)
    set_status(Status.CANCELLED, reason=Reason.CANCELLED_BY_USER, message=message)
    append_end_event(session, job, now, by=by)
