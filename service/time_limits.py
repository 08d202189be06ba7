"""Queues jobs whose time has come, and stops those that have trained for as long as they may."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from service.domain.job_status import STATUS_TABLE, Phase
from service.domain.jobs import Kind, Status
from service.store.models import JobRow
from service.store.repository import Repository
from service.store.scheduler_writes import SchedulerWrites, trained_seconds
from service.store.stored_spec import spec_value


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
        for job in jobs:
            limit_s = spec_value(job, "limits.training_seconds", 0.0)
            if limit_s > 0 and _is_training(job) and self._count_seconds(job) >= limit_s:
                self._writes.time_out(job, token, limit_s=limit_s, grace_s=self._grace_s)

    def _count_seconds(self, job: JobRow) -> float:
        """Return how long a job has trained, over all attempts."""
        attempt = self._repository.attempt(job.id, job.attempt)
        return job.trained_s + (trained_seconds(attempt, self._clock()) if attempt else 0.0)


def _is_training(job: JobRow) -> bool:
    return job.kind == Kind.JOB and STATUS_TABLE[Status(job.status)].phase is Phase.TRAINING
