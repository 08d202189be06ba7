"""Quotas along a queue: what later jobs leave to those ahead of them; pure.

The plan of the queue (`queue.py`) and its explanation (`wait_causes.py`) share these rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from accordion_service.domain.capacity.quotas import QuotaTable, QuotaUsage
from accordion_service.domain.capacity.resources import ResourceRequest


class QueuedJob(Protocol):
    """A queued job, as far as quotas are concerned."""

    @property
    def id(self) -> str:
        """Identify the job."""

    @property
    def request(self) -> ResourceRequest:
        """Return what the job needs."""

    @property
    def accounts(self) -> tuple[str, ...]:
        """List the accounts with a quota that the job counts towards."""


class CountedJob(QueuedJob, Protocol):
    """A job that holds workers, as far as quotas are concerned."""

    @property
    def allocated_workers(self) -> int:
        """Return how many workers it holds."""

    @property
    def leaving(self) -> bool:
        """Return whether it saves and ends."""


def measure_usage(jobs: Iterable[CountedJob], quotas: QuotaTable) -> QuotaUsage:
    """Return what jobs hold of each quota."""
    usage = QuotaUsage(quotas)
    for job in jobs:
        usage.add(job.accounts, job.request, job.allocated_workers)
    return usage


class QuotaReservations:
    """Decides which quotas a job waits for, one job after the other.

    Args:
        quotas: all quotas.
        allocated: the jobs that hold workers.
    """

    def __init__(self, quotas: QuotaTable, allocated: Sequence[CountedJob]) -> None:
        self.usage = measure_usage(allocated, quotas)
        """What jobs hold of each quota, and what is kept for those ahead."""
        self._lasting_usage = measure_usage([job for job in allocated if not job.leaving], quotas)
        """Usage once the leaving jobs are gone."""
        self._unused = QuotaUsage(quotas)
        self._awaited: set[str] = set()
        """Accounts with a quota that a job ahead waits for."""
        self._kept_by: dict[str, str] = {}
        """First job that waits for a quota of an account, or keeps some of it, by account."""

    def list_exhausted(self, job: QueuedJob) -> list[str]:
        """List the accounts whose quota is used up, or awaited by a job ahead."""
        used_up = self.usage.list_exhausted(job.accounts, job.request)
        return used_up or [account for account in job.accounts if account in self._awaited]

    def list_too_small(self, job: QueuedJob) -> list[str]:
        """List the accounts whose quota never lets a job start, whatever else counts towards it."""
        return self._unused.list_exhausted(job.accounts, job.request)

    def count_alone(self, job: QueuedJob) -> int:
        """Return with how many workers a job's quotas would let it start if no other job counted
        towards them.
        """
        return self._unused.count_startable(job.accounts, job.request)

    def list_keepers(self, accounts: Sequence[str]) -> list[str]:
        """List the first job ahead that waits for the quota of each account, or keeps some."""
        found = [self._kept_by[account] for account in accounts if account in self._kept_by]
        return list(dict.fromkeys(found))

    def count_with_fewer(self, job: QueuedJob) -> int:
        """Return the largest smaller minimum with which a job's quotas would let it start; 0 if
        there is none.
        """
        most = self.usage.count_startable(job.accounts, job.request)
        helps = most < job.request.min and self._awaited.isdisjoint(job.accounts)
        return most if helps else 0

    def admit(self, job: QueuedJob, workers: int) -> None:
        """Count a job that starts."""
        for usage in (self.usage, self._lasting_usage):
            usage.add(job.accounts, job.request, workers)

    def reserve(self, job: QueuedJob) -> None:
        """Keep the smallest group of a job that waits for capacity: no later one uses it up."""
        self.usage.add(job.accounts, job.request, job.request.min)
        self._note_keeper(job.id, job.accounts)

    def wait(self, job: QueuedJob, exhausted: Sequence[str]) -> bool:
        """Keep later jobs from what a job needs that waits for some quotas. Return whether it is
        the first one and starts as soon as the leaving jobs are gone: then its capacity and its
        quotas remain to be reserved.
        """
        if self.list_too_small(job):
            return False  # it can never start
        is_first = self._awaited.isdisjoint(exhausted)
        self._awaited.update(exhausted)
        self._note_keeper(job.id, exhausted)
        if is_first and not self._lasting_usage.list_exhausted(job.accounts, job.request):
            return True
        if is_first:
            # Later jobs would use up its other quotas, one at a time, and it would never start.
            self.admit(job, job.request.min)
            self._note_keeper(job.id, job.accounts)
        return False

    def _note_keeper(self, job_id: str, accounts: Sequence[str]) -> None:
        for account in accounts:
            self._kept_by.setdefault(account, job_id)
