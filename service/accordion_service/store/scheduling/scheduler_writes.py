"""Writes of the scheduler, each as one guarded transaction.

A write checks the lease's token and, if it depends on an earlier read, the version of the row. If
either is outdated, nothing is written and the scheduler continues with its next turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import structlog
from sqlalchemy.orm import Session

from accordion_service.domain.capacity.waiting_message import WAITS_FOR_SCHEDULER
from accordion_service.domain.jobs.actions import MarkLost
from accordion_service.domain.jobs.status_table import ENDED, HELD
from accordion_service.domain.jobs.statuses import Desired, Kind, Reason, Status
from accordion_service.domain.overrides import transitions
from accordion_service.runtime.protocol import Node
from accordion_service.store.engine.database import Database
from accordion_service.store.engine.events import append_end_event, append_event
from accordion_service.store.ingest import attempt_losses, record_ingest
from accordion_service.store.reads import time_limits
from accordion_service.store.scheduling.end_messages import describe_end, describe_pause
from accordion_service.store.scheduling.guests import insert_guest, update_guest
from accordion_service.store.tables.models import AttemptRow, ClusterRow, JobRow
from accordion_service.store.writes.history_limits import HistoryLimits, trim_history
from accordion_service.store.writes.leases import is_newest_token
from accordion_service.store.writes.status_changes import change_status
from accordion_workers.common.plain_text import clean_text
from accordion_workers.records.contract import Drained, EndRecord, Guest

Change = Callable[[Session, JobRow], None]
_SAVES = "saving a checkpoint"
_WAITING_FOR_WORKERS = {
    Status.STARTING: Reason.ADMITTED,
    Status.RESIZING: Reason.RESIZE_ORDERED,
    Status.RECOVERING: Reason.WORKERS_LOST,
}
"""Statuses without a worker group, and their reason after a wait for the storage."""
_AFTER_PAUSE = {
    Desired.PAUSE: (Status.PAUSED, Reason.PAUSED_BY_USER, "resume it to continue from there"),
    Desired.RUN: (
        Status.QUEUED,
        Reason.RESUMED,
        "it continues from there once its workers fit",
    ),
}
_RETURNS_TO_QUEUE = frozenset({Reason.PREEMPTED, Reason.SERVICE_STOPPED})
"""Reasons for which the service, and no user, pauses a job."""
_AFTER_REQUEUE = {
    Reason.NOT_PLACED: "; it waits for capacity again, and the attempt does not count as lost"
}
_CARRIED_OUT = {
    Reason.PAUSED_BY_USER: Desired.PAUSE,
    Reason.RESUMED: Desired.RUN,
    Reason.CANCELLED_BY_USER: Desired.CANCEL,
}
"""Desired state that a job has reached, by the reason of its status."""
_log = structlog.get_logger()


class SchedulerWrites:
    """Writes of one scheduler."""

    def __init__(
        self, database: Database, clock: Callable[[], float], limits: HistoryLimits
    ) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits

    def admit(self, seen: JobRow, token: int, *, workers: int, timeout_s: float) -> bool:
        """Reserve capacity for the next attempt; its supervisor is started afterwards."""
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            job.attempt += 1
            job.workers, job.deadline, job.orders_confirmed = workers, now + timeout_s, 0
            job.orders_version += 1
            message = f"{workers} worker{'s start' if workers > 1 else ' starts'}"
            change_status(
                session, job, Status.STARTING, reason=Reason.ADMITTED, message=message, now=now
            )
            attempt = AttemptRow(
                job_id=job.id,
                number=job.attempt,
                workers=workers,
                reason=job.reason,
                message=message,
            )
            attempt.created_at = now
            session.add(attempt)

        return self._write_if_unchanged(seen, token, change)

    def record_wait_reason(self, seen: JobRow, token: int, *, reason: Reason, message: str) -> bool:
        """Store why a queued job does not start yet."""
        message = clean_text(message)
        if (seen.reason, seen.message) == (reason, message):
            return True
        now = self._clock()
        return self._write_if_unchanged(
            seen,
            token,
            lambda session, job: change_status(
                session, job, Status.QUEUED, reason=reason, message=message, now=now
            ),
        )

    def reallocate(self, seen: JobRow, token: int, *, workers: int, why: str) -> bool:
        """Change a job's allocation; its supervisor starts or stops workers at a step boundary."""
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            data = {"what": "granted", "old": job.workers, "new": workers, "message": why}
            data["world_size"] = job.world_size
            job.workers = workers
            job.orders_version += 1
            append_event(session, job, "workers", data=data, now=now)

        return self._write_if_unchanged(seen, token, change)

    def preempt(
        self,
        seen: JobRow,
        token: int,
        *,
        why: str,
        grace_s: float,
        reason: Reason = Reason.PREEMPTED,
    ) -> bool:
        """Take all workers of a job: they have `grace_s` seconds to save, and the job returns to
        its place in the queue. `reason` is one of `_RETURNS_TO_QUEUE`.
        """
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            job.orders_version += 1
            job.deadline = now + grace_s
            change_status(
                session,
                job,
                Status.PAUSING,
                reason=reason,
                message=f"{_SAVES}: {why}",
                now=now,
            )

        return self._write_if_unchanged(seen, token, change)

    def queue_scheduled(self, seen: JobRow, token: int) -> bool:
        """Queue a job whose time has come."""
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            job.queued_at, message = now, WAITS_FOR_SCHEDULER
            change_status(
                session, job, Status.QUEUED, reason=Reason.SUBMITTED, message=message, now=now
            )

        return self._write_if_unchanged(seen, token, change)

    def time_out(self, seen: JobRow, token: int, *, is_total: bool, grace_s: float | None) -> bool:
        """Stop a job that has reached its total time limit, or the one for its training.

        Its workers have `grace_s` seconds to save; None: all the time until `begin_grace`. A job
        without workers fails at once.
        """
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            if not is_total:
                job.times_out_at = None
            if job.status in HELD:
                status, reason, message = _time_out_end(job)
                _end_job(session, job, status, reason=reason, message=message, now=now)
                return
            job.orders_version += 1
            job.deadline = None if grace_s is None else now + grace_s
            what = "stopping its workers" if job.status == Status.STARTING else _SAVES
            message, reason = f"{what}: {time_limits.describe_limit(job)}", Reason.TIMED_OUT
            change_status(session, job, Status.STOPPING, reason=reason, message=message, now=now)

        return self._write_if_unchanged(seen, token, change)

    def begin_grace(self, seen: JobRow, token: int, *, grace_s: float) -> bool:
        """Give the workers of a job that is being stopped `grace_s` seconds from now to save."""
        now = self._clock()

        def change(_: Session, job: JobRow) -> None:
            job.deadline = now + grace_s

        return self._write_if_unchanged(seen, token, change)

    def record_wait_message(
        self,
        seen: JobRow,
        token: int,
        message: str,
        *,
        waits: bool = False,
        has_workers: bool = True,
    ) -> bool:
        """Show what a job waits for while it starts, changes workers or, with `waits`, trains.
        `waits` says that it waits for its storage, `has_workers` whether it may have processes.
        """
        status, message = Status(seen.status), clean_text(message)
        if status is Status.RUNNING:
            return self._show_wait(seen, token, message, waits=waits, has_workers=has_workers)
        now, reason = self._clock(), _choose_reason(seen, waits=waits)
        is_shown = (seen.reason, seen.message) == (reason, message)
        if status not in _WAITING_FOR_WORKERS or not message or is_shown:
            return True
        return self._write_if_unchanged(
            seen,
            token,
            lambda session, job: change_status(
                session, job, status, reason=reason, message=message, now=now
            ),
        )

    def _show_wait(
        self, seen: JobRow, token: int, message: str, *, waits: bool, has_workers: bool
    ) -> bool:
        was_shown = seen.reason == Reason.WAITING_FOR_STORAGE
        if waits == was_shown and (not waits or message in {"", seen.message}):
            return True
        if not waits and not seen.world_size:
            return True  # The record of its lost workers follows, and then that of the next group.
        now, reason = self._clock(), Reason.WAITING_FOR_STORAGE

        def change(session: Session, job: JobRow) -> None:
            if waits:
                job.world_size = job.world_size if has_workers else 0
                change_status(session, job, Status.RUNNING, reason=reason, message=message, now=now)
            else:
                record_ingest.mark_training(session, job, now=now)

        return self._write_if_unchanged(seen, token, change)

    def confirm_orders(self, seen: JobRow, token: int, version: int) -> bool:
        """Store that the Accordion actor holds the orders of that version."""
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            job.orders_confirmed = version
            record_ingest.update_overrides(
                session, job, lambda status: transitions.deliver(status, version), now=now
            )

        return self._write(seen.id, token, change)

    def mark_lost(
        self, seen: JobRow, token: int, *, action: MarkLost, history: Drained, budget: int
    ) -> bool:
        """End a lost attempt: the job waits for the next one, or fails after too many losses in a
        row.

        The journal of the attempt is stored first: it may contain further progress.
        """
        now = self._clock()
        reason, message = action.reason, action.message

        def change(session: Session, job: JobRow) -> None:
            self._ingest(session, job, history, now=now)
            _close_attempt(session, job, reason, message=message, now=now)
            attempt_losses.count_lost_group(job)
            job.lost_attempts += 1
            if job.lost_attempts > budget:
                failed = Reason.START_FAILED if reason is Reason.START_TIMED_OUT else Reason.LOST
                text = (
                    f"{message}; {job.lost_attempts} in a row were lost without a checkpoint, the"
                    f" limit is {budget}"
                )
                _end_job(session, job, Status.FAILED, reason=failed, message=text, now=now)
                return
            job.workers, job.world_size, job.deadline = 0, 0, None
            text = f"{message}; attempt {job.attempt + 1} starts as soon as there is capacity"
            change_status(session, job, Status.QUEUED, reason=reason, message=text, now=now)

        return self._write_if_unchanged(seen, token, change)

    def requeue(
        self, seen: JobRow, token: int, *, reason: Reason, message: str, history: Drained
    ) -> bool:
        """Return a job whose processes were not placed, or could not be started, to the queue; the
        attempt does not count as lost.
        """
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            self._ingest(session, job, history, now=now)
            _close_attempt(session, job, reason, message=message, now=now)
            job.workers, job.world_size, job.deadline = 0, 0, None
            text = f"{message}{_AFTER_REQUEUE.get(reason, '')}"
            change_status(session, job, Status.QUEUED, reason=reason, message=text, now=now)

        return self._write_if_unchanged(seen, token, change)

    def mark_guest_lost(self, seen: JobRow, token: int, *, message: str, left_s: float) -> bool:
        """Set a guest run to LOST; unless a heartbeat arrives, it is closed after `left_s`
        seconds.
        """
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            job.world_size, job.deadline = 0, now + left_s
            change_status(session, job, Status.LOST, reason=Reason.LOST, message=message, now=now)

        return self._write_if_unchanged(seen, token, change)

    def mark_guest_stalled(self, seen: JobRow, token: int, *, idle_s: float) -> bool:
        """Show that a guest run is alive and has made no step for `idle_s` seconds."""
        now = self._clock()
        since = datetime.fromtimestamp(now - idle_s, UTC)
        message = (
            f"no step since {since:%Y-%m-%d %H:%M:%S} UTC; its process is alive: it evaluates,"
            " saves, compiles or hangs"
        )

        def change(session: Session, job: JobRow) -> None:
            change_status(
                session, job, Status.RUNNING, reason=Reason.NO_STEPS, message=message, now=now
            )

        return self._write_if_unchanged(seen, token, change)

    def register_guest(self, guest: Guest, token: int) -> bool:
        """Insert or update the row of a guest run; False if the lease is lost or the run
        has ended.
        """
        now = self._clock()
        with self._database.write() as session:
            job = session.get(JobRow, guest.job_id, with_for_update=True)
            if not is_newest_token(session, token):
                return False
            if job is None:
                insert_guest(session, guest, now=now)
                return True
            if job.kind != Kind.GUEST or Status(job.status) in ENDED:
                return False
            job.version += 1
            update_guest(job, guest)
            return True

    def finish_pause(self, seen: JobRow, token: int, *, drained: Drained) -> bool:
        """End a paused attempt: the job is PAUSED, or queued or cancelled if requested since."""
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            was_preempted = (before := Reason(job.reason)) in _RETURNS_TO_QUEUE
            self._ingest(session, job, drained, now=now)
            message = describe_pause(drained)
            why_ended = before if was_preempted else Reason.PAUSED_BY_USER
            if job.status == Status.STOPPING:
                why_ended = Reason.TIMED_OUT
            _close_attempt(session, job, why_ended, message=message, now=now)
            if job.desired == Desired.CANCEL:
                status, reason = Status.CANCELLED, Reason.CANCELLED_BY_USER
                message = "cancelled while it paused"
                _end_job(session, job, status, reason=reason, message=message, now=now)
                return
            if job.status == Status.STOPPING:  # its supervisor no longer knew why it stops
                status, reason, message = _time_out_end(job)
                _end_job(session, job, status, reason=reason, message=message, now=now)
                return
            job.workers, job.world_size, job.deadline = 0, 0, None
            status, reason, then = _AFTER_PAUSE[Desired(job.desired)]
            reason = before if was_preempted else reason
            message, by = f"{message}; {then}", _find_user(job, reason)
            change_status(session, job, status, reason=reason, message=message, now=now, by=by)

        return self._write(seen.id, token, change)

    def finish(self, seen: JobRow, token: int, *, end: EndRecord, drained: Drained) -> bool:
        """End the job: store the rest of its history and its end in one transaction."""
        now = self._clock()

        def change(session: Session, job: JobRow) -> None:
            was_timed_out = job.reason == Reason.TIMED_OUT
            self._ingest(session, job, drained, now=now)
            status, reason = Status(end.status), Reason(end.reason)
            message = end.message or describe_end(session, job, end)
            if was_timed_out and status is Status.CANCELLED:
                status, reason, message = _time_out_end(job)
            _close_attempt(session, job, reason, message=message, now=now)
            _end_job(session, job, status, reason=reason, message=message, now=now)

        return self._write_if_unchanged(seen, token, change)

    def record_cluster(
        self,
        token: int,
        *,
        nodes: Sequence[Node] | None,
        message: str = "",
        dashboard_url: str | None = None,
    ) -> bool:
        """Store the cluster's snapshot; None if it did not answer, which keeps the last one."""
        now = self._clock()
        with self._database.write() as session:
            if not is_newest_token(session, token):
                return False
            row = session.get(ClusterRow, 1) or ClusterRow(id=1, nodes=[], seen_at=None)
            row.reachable, row.message, row.dashboard_url = (
                nodes is not None,
                message,
                dashboard_url,
            )
            if nodes is not None:
                row.nodes, row.seen_at = [asdict(node) for node in nodes], now
            session.add(row)
            return True

    def _ingest(self, session: Session, job: JobRow, drained: Drained, *, now: float) -> None:
        record_ingest.ingest_records(session, [(job, drained)], now=now)
        trim_history(session, [job], self._limits)

    def _write_if_unchanged(self, seen: JobRow, token: int, change: Change) -> bool:
        return self._write(seen.id, token, change, version=seen.version)

    def _write(
        self, job_id: str, token: int, change: Change, *, version: int | None = None
    ) -> bool:
        with self._database.write() as session:
            job = session.get(JobRow, job_id, with_for_update=True)
            mine = is_newest_token(session, token)
            stale = job is None or Status(job.status) in ENDED or version not in {None, job.version}
            if job is None or stale or not mine:
                _log.info("dropped", job_id=job_id, reason="stale" if mine else "lease lost")
                return False
            job.version += 1
            change(session, job)
            return True


def _choose_reason(job: JobRow, *, waits: bool) -> Reason:
    """Return the reason of a job without a worker group; `waits` (for its storage) is one."""
    status, reason = Status(job.status), Reason(job.reason)
    if waits:
        return Reason.WAITING_FOR_STORAGE
    if status is Status.STARTING or reason is Reason.WAITING_FOR_STORAGE:
        return _WAITING_FOR_WORKERS.get(status, reason)
    return reason


def _find_user(job: JobRow, reason: Reason) -> str | None:
    """Return the user who asked for a status with this reason; None if the service decided it."""
    return job.desired_by if _CARRIED_OUT.get(reason) == job.desired else None


def _close_attempt(
    session: Session, job: JobRow, reason: Reason, *, message: str, now: float
) -> None:
    attempt = session.get(AttemptRow, (job.id, job.attempt))
    if attempt is not None:
        attempt.reason, attempt.message, attempt.ended_at = reason.value, message, now
        job.trained_s += time_limits.trained_seconds(job, attempt)


def _time_out_end(job: JobRow) -> tuple[Status, Reason, str]:
    return Status.FAILED, Reason.TIMED_OUT, time_limits.describe_time_out(job)


def _end_job(
    session: Session,
    job: JobRow,
    status: Status,
    *,
    reason: Reason,
    message: str,
    now: float,
) -> None:
    by = _find_user(job, reason)
    record_ingest.update_overrides(session, job, transitions.end, now=now)
    change_status(session, job, status, reason=reason, message=message, now=now, by=by)
    append_end_event(session, job, now, by=by)
