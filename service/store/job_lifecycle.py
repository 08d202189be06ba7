"""Requests for existing jobs, each as one transaction: resize, pause, resume, cancel."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError
from sqlalchemy.orm import Session

from service.domain import overrides
from service.domain.job_status import ENDED, HELD
from service.domain.jobs import Desired, Kind, Reason, Status
from service.errors import Conflict, Invalid, NotFound
from service.store.database import Database
from service.store.events import append_end_event, append_event
from service.store.models import AttemptRow, JobRow
from service.store.override_changes import load_override_statuses, store_override_status
from service.store.status_changes import change_status
from service.store.stored_documents import stored_ray_run
from service.store.stored_spec import spec_of
from workers.contract import JobSpec

CheckJob = Callable[[JobRow], None]
"""Raises if the caller's condition on the job (If-Match) does not hold; runs inside the
transaction.
"""
Change = Callable[[Session, JobRow], None]


class JobLifecycle:
    """Writes requests for one job; repeating a request changes nothing.

    Raises (every method): NotFound, if there is no such job; Conflict, if it has ended or is being
    cancelled.
    """

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

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
            job.min_workers, job.max_workers = min_workers, max_workers
            job.orders_version += 1
            data = {
                "what": "allowed",
                "min": min_workers,
                "max": max_workers,
                "world_size": job.world_size,
            }
            append_event(session, job, "workers", data=data, now=now)

        return self._change_job(
            job_id,
            change,
            what="resized",
            check=check,
            is_asked=lambda job: (job.min_workers, job.max_workers) == (min_workers, max_workers),
        )

    def pause(self, job_id: str, check: CheckJob, *, grace_s: float) -> JobRow:
        """Pause the job: at once if queued, else its workers have `grace_s` seconds to save."""
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            job.desired = Desired.PAUSE.value
            if job.status == Status.QUEUED:
                message = "paused in the queue; resume it to queue it again"
                change_status(
                    session,
                    job,
                    Status.PAUSED,
                    reason=Reason.PAUSED_BY_USER,
                    message=message,
                    now=now,
                )
                return
            if job.status != Status.PAUSING:
                job.orders_version += 1
                job.deadline = now + grace_s
            message = "saving a checkpoint; paused after that until you resume it"
            change_status(
                session,
                job,
                Status.PAUSING,
                reason=Reason.PAUSE_REQUESTED,
                message=message,
                now=now,
            )

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
            job.desired = Desired.RUN.value
            if job.status == Status.PAUSED:
                message = "resumed; waits for the scheduler"
                change_status(
                    session, job, Status.QUEUED, reason=Reason.RESUMED, message=message, now=now
                )
                return
            message = "resumed while saving a checkpoint; returns to the queue when it is saved"
            change_status(
                session, job, Status.PAUSING, reason=Reason.RESUMED, message=message, now=now
            )

        return self._change_job(
            job_id,
            change,
            what="resumed",
            check=check,
            is_asked=lambda job: job.desired == Desired.RUN,
        )

    def cancel(self, job_id: str, check: CheckJob, *, grace_s: float) -> JobRow:
        """Cancel the job: at once if no process runs, else its workers have `grace_s` seconds to
        save and stop.

        A guest run can be cancelled only if it is LOST; it ends at once.
        """
        now = self._clock()
        with self._database.write() as session:
            job = lock_job(session, job_id)
            check(job)
            if job.desired == Desired.CANCEL:
                return job
            refuse_ended(job, "cancelled")
            if job.status != Status.LOST:
                refuse_guest(job, "cancelled")
            raise_versions(job)
            job.desired = Desired.CANCEL.value
            if job.status in HELD | {Status.LOST}:
                _cancel_inactive(session, job, now)
                return job
            job.orders_version += 1
            job.deadline = now + grace_s
            message = "the workers save their state and stop"
            change_status(
                session,
                job,
                Status.STOPPING,
                reason=Reason.CANCEL_REQUESTED,
                message=message,
                now=now,
            )
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
            job = lock_job(session, job_id)
            check(job)
            refuse_ended(job, what)
            refuse_guest(job, what)
            if job.desired == Desired.CANCEL:
                raise Conflict(f"job {job.id} is being cancelled and cannot be {what} any more")
            if not is_asked(job):
                raise_versions(job)
                change(session, job)
            return job


def lock_job(session: Session, job_id: str) -> JobRow:
    """Read and lock a job.

    Raises:
        NotFound: there is none.
    """
    job = session.get(JobRow, job_id, with_for_update=True)
    if job is None:
        raise NotFound(
            f"there is no job with the ID {job_id}; GET /api/v1/jobs lists all, by ID and name"
        )
    return job


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
    spec = spec_of(job).model_dump(mode="json")
    try:
        JobSpec.model_validate(
            {**spec, "workers": {**spec["workers"], "min": min_workers, "max": max_workers}}
        )
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        pointer = "/min" if item["loc"][-1:] == ("min",) else "/max"
        raise Invalid(item["msg"].removeprefix("Value error, "), pointer) from None


def _cancel_inactive(session: Session, job: JobRow, now: float) -> None:
    for row, old in load_override_statuses(session, job).values():
        store_override_status(session, job, row=row, old=old, new=overrides.end(old), now=now)
    message = f"cancelled while it was {job.status.lower()}"
    attempt = session.get(AttemptRow, (job.id, job.attempt)) if job.status == Status.LOST else None
    if attempt is not None:
        attempt.reason, attempt.message, attempt.ended_at = (
            Reason.CANCELLED_BY_USER.value,
            message,
            now,
        )
    change_status(
        session, job, Status.CANCELLED, reason=Reason.CANCELLED_BY_USER, message=message, now=now
    )
    append_end_event(session, job, now)
