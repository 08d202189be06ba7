"""Enforces the times in specs: queues jobs at `start_at`, and stops those that reach
`limits.training_seconds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from service.domain.job_status import STATUS_TABLE, Phase
from service.domain.jobs import Kind, Status
from service.store.models import JobRow
from service.store.repository import Repository
from service.store.scheduler_writes import SchedulerWrites
from service.store.training_time import time_limit, trained_seconds


class TimeLimits:
    """Acts on the times that specs name; `clock` returns seconds since 1970."""

    def __init__(
        self,
        repository: Repository,
        writes: SchedulerWrites,
        clock: Callable[[], float],
        *,
        grace_s: float,
    ) -> None:
        self._repository = repository
        self._writes = writes
        self._clock = clock
        self._grace_s = grace_s

    def queue_due(self, token: int) -> None:
        """Queue the jobs whose `start_at` has come."""
        for job in self._repository.due(self._clock()):
            self._writes.queue_scheduled(job, token)

    def stop_overdue(self, jobs: Iterable[JobRow], token: int) -> None:
        """Stop the jobs that have trained for `limits.training_seconds`."""
        limited = [job for job in jobs if time_limit(job) and _is_training(job)]
        attempts = self._repository.newest_attempts([job.id for job in limited])
        for job in limited:
            attempt = attempts.get(job.id)
            trained_s = job.trained_s + (trained_seconds(job, attempt) if attempt else 0.0)
            if trained_s >= time_limit(job):
                self._writes.time_out(job, token, grace_s=self._grace_s)


def _is_training(job: JobRow) -> bool:
    return job.kind == Kind.JOB and STATUS_TABLE[Status(job.status)].phase is Phase.TRAINING
