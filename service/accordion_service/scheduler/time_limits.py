"""Enforces the times in specs: queues jobs at `start_at`, and stops those that reach
`limits.training_seconds` or `limits.total_seconds`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accordion_service.domain.jobs.status_table import STATUS_TABLE, Phase
from accordion_service.domain.jobs.statuses import Kind, Status
from accordion_service.process.trusted_clock import AGREED_S, TrustedClock
from accordion_service.scheduler.deadlines import StoredTimes
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.history import HistoryReads
from accordion_service.store.reads.queue import QueueReads
from accordion_service.store.reads.time_limits import total_limit, trained_seconds, training_limit
from accordion_service.store.scheduling.scheduler_writes import SchedulerWrites
from accordion_service.store.tables.models import JobRow


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    """How long a job had trained at a moment, in seconds; `at` is on the monotonic clock."""

    trained_s: float
    at: float
    is_stored: bool
    """Whether an earlier process has stored this, perhaps long before `at`."""


class TimeLimits:
    """Acts on the times that specs name; `clock` returns seconds since 1970."""

    def __init__(
        self,
        database: Database,
        writes: SchedulerWrites,
        settings: Settings,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._queue, self._history = QueueReads(database), HistoryReads(database)
        self._writes = writes
        self._grace_s = settings.cancel_grace_s
        self._clock = clock
        self._monotonic = monotonic
        self._ends = StoredTimes(clock=clock, monotonic=monotonic, agreed_s=AGREED_S)
        self._trusted = TrustedClock(clock=clock, monotonic=monotonic)
        self._first_seen: dict[tuple[str, int], _Trained] = {}
        """What each attempt had trained when this process first saw it, or at its first report if
        the attempt is older than this process; by job id and number.
        """
        self._has_looked = False

    def queue_due(self, token: int) -> None:
        """Queue the jobs whose `start_at` has come."""
        for job in self._queue.due(self._clock()):
            self._writes.queue_scheduled(job, token)

    def stop_overdue(self, jobs: Sequence[JobRow], token: int) -> None:
        """Stop those of the unfinished jobs that have reached a limit."""
        for job in jobs:
            if job.status == Status.STOPPING and job.deadline is None:
                self._writes.begin_grace(job, token, grace_s=self._grace_s)
        self._stop_expired(jobs, token, grace_s=self._grace_s)
        self._stop_trained(jobs, token)

    def stop_unreachable(self, jobs: Sequence[JobRow], token: int) -> None:
        """Stop those of the unfinished jobs that have reached their total limit while the cluster
        does not respond.

        Their workers have the whole time to save from the moment at which it responds.
        """
        self._stop_expired(jobs, token, grace_s=None)

    def _stop_expired(self, jobs: Sequence[JobRow], token: int, *, grace_s: float | None) -> None:
        self._ends.keep_only({job.id for job in jobs})
        for job in jobs:
            if job.status != Status.STOPPING and self._has_expired(job):
                self._writes.time_out(job, token, is_total=True, grace_s=grace_s)

    def _has_expired(self, job: JobRow) -> bool:
        if job.times_out_at is None:
            return False
        until_start_s = max(0.0, (job.start_at or 0.0) - self._clock())
        longest_s = until_start_s + total_limit(job)
        return self._monotonic() >= self._ends.convert(job.id, job.times_out_at, longest_s)

    def _stop_trained(self, jobs: Sequence[JobRow], token: int) -> None:
        limited = [job for job in jobs if training_limit(job) and _is_training(job)]
        attempts = self._history.newest_attempts([job.id for job in limited])
        keys = {(job.id, job.attempt) for job in limited}
        self._first_seen = {key: seen for key, seen in self._first_seen.items() if key in keys}
        for job in limited:
            attempt = attempts.get(job.id)
            trained_s = job.trained_s + (trained_seconds(job, attempt) if attempt else 0.0)
            if self._has_trained(job, trained_s):
                self._writes.time_out(job, token, is_total=False, grace_s=self._grace_s)
        self._has_looked = True

    def _has_trained(self, job: JobRow, trained_s: float) -> bool:
        """Whether a job has reached its limit, by the clocks of its workers and by this one's: no
        attempt can train for longer than has passed since its time was first known.
        """
        limit_s, now, key = training_limit(job), self._monotonic(), (job.id, job.attempt)
        first = self._first_seen.get(key)
        is_new = first is not None and first.is_stored and trained_s != first.trained_s
        if first is None or trained_s < first.trained_s or is_new:
            is_stored = first is None and not self._has_looked
            first = _Trained(trained_s=trained_s, at=now, is_stored=is_stored)
            self._first_seen[key] = first
        if trained_s < limit_s:
            return False
        if first.trained_s >= limit_s:
            return self._trusted.read(limit_s) is not None
        return first.trained_s + now - first.at >= limit_s


def _is_training(job: JobRow) -> bool:
    return job.kind == Kind.JOB and STATUS_TABLE[Status(job.status)].phase is Phase.TRAINING
