"""Quotas: what the jobs of a user, or with a label, may hold at the same time; pure.

A job counts towards one account for its owner and one for each of its labels, as far as these have
a quota. A quota limits starts and growth; no job loses workers because a quota is lowered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from accordion_service.domain.capacity.bin_packing import round_down
from accordion_service.domain.capacity.resources import ResourceRequest

ANY_USER = "*"
"""In place of a name: every user without a quota of their own, each separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What the jobs of one account may hold at the same time; None is no limit."""

    jobs: int | None = None
    """Jobs that hold workers."""
    workers: int | None = None
    gpus: float | None = None

    def describe(self) -> str:
        """Return the limits in words, such as `2 jobs and 8 workers`."""
        named = [(self.jobs, "job"), (self.workers, "worker"), (self.gpus, "GPU")]
        parts = [
            f"{limit:g} {unit}{'' if limit == 1 else 's'}"
            for limit, unit in named
            if limit is not None
        ]
        *first, last = parts or ["any number of workers"]
        return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the jobs of one account hold."""

    jobs: int = 0
    workers: int = 0
    gpus: float = 0.0

    def plus(self, gpus_per_worker: float, workers: int) -> Usage:
        """Return the usage with one more job."""
        return Usage(
            jobs=self.jobs + (workers > 0),
            workers=self.workers + workers,
            gpus=self.gpus + workers * gpus_per_worker,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaTable:
    """All quotas, by account."""

    quotas: Mapping[str, Quota] = field(default_factory=dict)

    def list_accounts(self, owner: str | None, labels: Mapping[str, str]) -> tuple[str, ...]:
        """List the accounts with a quota that a job counts towards."""
        accounts = [label_account(key, value) for key, value in labels.items()]
        found = [account for account in accounts if account in self.quotas]
        if owner is not None and {user_account(owner), user_account(ANY_USER)} & set(self.quotas):
            found.insert(0, user_account(owner))
        return tuple(found)

    def find_quota(self, account: str) -> Quota:
        """Return the quota of an account: for a user without one, that of any user."""
        return self.quotas.get(account) or self.quotas.get(user_account(ANY_USER), Quota())


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whose jobs an account counts: one of the two is set."""

    user: str | None
    label: str | None
    """Label as `key:value`."""


def user_account(name: str) -> str:
    """Return the account of a user's jobs."""
    return f"user {name}"


def label_account(key: str, value: str) -> str:
    """Return the account of the jobs with a label."""
    return f"label {key}:{value}"


def split_account(account: str) -> Subject:
    """Return whose jobs an account counts."""
    kind, _, name = account.partition(" ")
    return Subject(user=name, label=None) if kind == "user" else Subject(user=None, label=name)


class QuotaUsage:
    """What the jobs hold of each quota, while a plan is made."""

    def __init__(self, table: QuotaTable) -> None:
        self._table = table
        self._used: dict[str, Usage] = {}

    def add(self, accounts: Sequence[str], request: ResourceRequest, workers: int) -> None:
        """Count a job that holds so many workers."""
        for account in accounts:
            self._used[account] = self.find_usage(account).plus(request.gpus, workers)

    def find_usage(self, account: str) -> Usage:
        """Return what the jobs of an account hold."""
        return self._used.get(account, Usage())

    def list_other_users(self) -> dict[str, Usage]:
        """Return what the jobs of each user hold who has no quota of their own, by name."""
        subjects = {one: split_account(one).user for one in self._used}
        return {
            user: self._used[account]
            for account, user in sorted(subjects.items())
            if user is not None and account not in self._table.quotas
        }

    def count_startable(self, accounts: Sequence[str], request: ResourceRequest) -> int:
        """Return with how many workers a job may start, at most its maximum."""
        allowed = [self._count_startable(account, request) for account in accounts]
        return request.whole(min([request.max, *allowed]))

    def count_additional(self, accounts: Sequence[str], request: ResourceRequest) -> int:
        """Return how many more workers a job that runs may get, at most its maximum."""
        return min([request.max, *(self._count_workers(account, request) for account in accounts)])

    def list_exhausted(self, accounts: Sequence[str], request: ResourceRequest) -> list[str]:
        """List the accounts whose quota does not let a job start now."""
        return [
            account for account in accounts if self._count_startable(account, request) < request.min
        ]

    def _count_startable(self, account: str, request: ResourceRequest) -> int:
        limit = self._table.find_quota(account).jobs
        has_job = limit is None or self.find_usage(account).jobs < limit
        return self._count_workers(account, request) if has_job else 0

    def _count_workers(self, account: str, request: ResourceRequest) -> int:
        quota, used = self._table.find_quota(account), self.find_usage(account)
        count = request.max
        if quota.workers is not None:
            count = min(count, quota.workers - used.workers)
        if quota.gpus is not None and request.gpus > 0:
            count = min(count, round_down((quota.gpus - used.gpus) / request.gpus))
        return max(0, count)
