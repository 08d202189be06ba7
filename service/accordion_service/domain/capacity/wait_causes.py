"""Explains the queue: which jobs a pending job waits for, and what would help; pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from accordion_service.domain.capacity.allocation import plan_allocations
from accordion_service.domain.capacity.bin_packing import (
    count_fitting,
    count_placeable,
    fits_beside,
)
from accordion_service.domain.capacity.holders import list_holders
from accordion_service.domain.capacity.misfits import (
    describe_fewer,
    describe_workers,
    list_misfit_remedies,
)
from accordion_service.domain.capacity.queue import (
    DEFAULT_RULES,
    AllocatedJob,
    PendingJob,
    QueueRules,
    list_closed,
)
from accordion_service.domain.capacity.quota_reservations import QuotaReservations
from accordion_service.domain.capacity.resources import (
    ResourceRequest,
    Resources,
    resources_on_nodes,
    worker_resources,
)

_Kind = tuple[object, ...]
_NAMED_NODES = 2
"""Nodes that one remedy names; more are counted."""
_NAMED_JOBS = 2
"""Jobs whose minimum remedies name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitCause:
    """Why a job waits."""

    waits_for: tuple[str, ...] = ()
    """IDs of jobs: those that hold the capacity or quota that it lacks, or the one ahead of it. For
    a quota that a job ahead waits for, or keeps some of, that one first. None if the job needs
    more than its quota allows.
    """
    for_quota: bool = False
    """Whether it lacks quota. Then `waits_for` tells which accounts these jobs count towards."""
    remedies: tuple[str, ...] = ()
    """Changes of which each one would let it start, at once or, where it says so, when other jobs
    end; or that it needs none, because it takes workers from other jobs. Empty if only time helps.
    """


WAITS_FOR_SECRET = WaitCause(
    remedies=(
        "its owner setting the secret again (once an admin has made a new key, if other secrets"
        " need one that is gone)",
        "the key with which the secret was encrypted",
    )
)
"""Cause of a job that needs a secret which cannot be decrypted, before anything of the cluster."""


def explain_queue(
    pending: Sequence[PendingJob],
    nodes: Sequence[Resources],
    allocated: Sequence[AllocatedJob],
    *,
    foreign: Sequence[Resources] = (),
    rules: QueueRules = DEFAULT_RULES,
    max_priority: int,
) -> dict[str, WaitCause]:
    """Explain each job of the queue, by id; the arguments are those of `plan_queue`, and
    `max_priority` is the highest priority that users may give a job.
    """
    view = _QueueView(nodes, allocated, foreign=foreign, rules=rules, max_priority=max_priority)
    return {job.id: view.explain(job) for job in pending} if nodes else {}


def list_preempted(
    job: PendingJob,
    nodes: Sequence[Resources],
    allocated: Sequence[AllocatedJob],
    *,
    foreign: Sequence[Resources] = (),
    rules: QueueRules = DEFAULT_RULES,
) -> list[str]:
    """List the jobs that would lose workers for a job at the head of the queue. Others may lose
    some as well, because they do not fit any more.
    """
    changes = plan_allocations(allocated, [job], nodes, foreign=foreign, rules=rules)
    held = {
        one.id: min(one.allocated_workers, one.request.max)
        for one in allocated
        if job.may_take_from(one)
    }
    return [job_id for job_id, change in changes.items() if change.workers < held.get(job_id, 0)]


class _QueueView:
    """Explains one job after the other, in the order of the queue."""

    def __init__(
        self,
        nodes: Sequence[Resources],
        allocated: Sequence[AllocatedJob],
        *,
        foreign: Sequence[Resources],
        rules: QueueRules,
        max_priority: int,
    ) -> None:
        self._nodes = nodes
        self._allocated = allocated
        self._foreign = resources_on_nodes(nodes, foreign)
        self._rules = rules
        self._quotas = QuotaReservations(rules.quotas, allocated)
        self._max_priority = max_priority
        self._head: PendingJob | None = None
        """First job that waits for capacity."""
        self._causes: dict[_Kind, WaitCause] = {}
        """Causes that no usage of a quota changes, by all that they depend on: many jobs are alike.
        """
        self._holders: dict[tuple[str, ...], list[str]] = {}
        """Jobs with workers that count towards one of these accounts."""

    def explain(self, job: PendingJob) -> WaitCause:
        """Explain the next job of the queue, and keep from later ones what the plan keeps."""
        fits = count_fitting(worker_resources(job.request), self._nodes, ()) >= job.request.min
        if not fits and job.id not in self._rules.awaiting_nodes:
            return self._explain_misfit(job)
        exhausted = self._quotas.list_exhausted(job)
        if exhausted:
            cause = self._explain_quota(job, exhausted)
            if self._quotas.wait(job, exhausted):
                self._block(job)
            return cause
        cause = self._explain_capacity(job) if fits else self._explain_misfit(job)
        self._block(job)
        return cause

    def _block(self, job: PendingJob) -> None:
        self._head = self._head or job
        self._quotas.reserve(job)

    def _explain_capacity(self, job: PendingJob) -> WaitCause:
        """Explain a job that waits for nothing but capacity."""
        if self._head is None:
            return self._explain_head(job)
        ahead = job.priority + max(0, math.floor(self._head.rank - job.rank)) + 1
        kind = ("turn", job.request, ahead)
        if kind not in self._causes:
            self._causes[kind] = self._explain_turn(job, self._head, ahead)
        return self._causes[kind]

    def _explain_turn(self, job: PendingJob, head: PendingJob, ahead: int) -> WaitCause:
        """Explain a job behind the first one that waits for capacity; with the priority `ahead` it
        would be ahead of that one.
        """
        starts = self._count_placeable(job) >= job.request.min and ahead <= self._max_priority
        remedies = (f"priority {ahead}: it then starts first",) if starts else ()
        return WaitCause(waits_for=(head.id,), remedies=remedies)

    def _explain_quota(self, job: PendingJob, exhausted: Sequence[str]) -> WaitCause:
        remedies = (_raise_quotas(exhausted), *self._suggest_quota_minimum(job))
        if self._quotas.list_too_small(job):
            return WaitCause(for_quota=True, remedies=remedies)  # the end of no job helps
        named = [*self._quotas.list_keepers(exhausted), *self._list_quota_holders(exhausted)]
        return WaitCause(waits_for=tuple(named), for_quota=True, remedies=remedies)

    def _suggest_quota_minimum(self, job: PendingJob) -> tuple[str, ...]:
        """Suggest the minimum with which quotas let a job start, and if they never allow its own,
        the largest one that they allow.
        """
        now, alone = self._quotas.count_with_fewer(job), self._quotas.count_alone(job)
        remedies = [f"a minimum of {describe_workers(now)}"] if now else []
        if now < alone < job.request.min:
            later = "it then starts when other jobs of this quota end"
            remedies.append(f"a minimum of {describe_workers(alone)}: {later}")
        return tuple(remedies)

    def _list_quota_holders(self, accounts: Sequence[str]) -> list[str]:
        key = tuple(accounts)
        if key not in self._holders:
            self._holders[key] = [
                one.id for one in self._allocated if not set(key).isdisjoint(one.accounts)
            ]
        return self._holders[key]

    def _explain_head(self, job: PendingJob) -> WaitCause:
        now = self._count_placeable(job)
        if now >= job.request.min:
            return WaitCause()  # the scheduler starts it with its next turn
        holders = list_holders(job.request, self._nodes, self._allocated, foreign=self._foreign)
        losing = self._list_losing(job, job.priority)
        if losing:
            remedies = (f"no change: it is taking workers from {_name_losing(losing)}",)
            return WaitCause(waits_for=holders, remedies=remedies)
        fewer = (f"a minimum of {describe_workers(now)}",) if now else ()
        reopened = self._suggest_reopening(job.request, [*self._list_taken(), *self._foreign])
        smaller = self._suggest_smaller_minimum(job, holders)
        remedies = (*fewer, *reopened, *self._suggest_priority(job), *smaller)
        return WaitCause(waits_for=holders, remedies=remedies)

    def _explain_misfit(self, job: PendingJob) -> WaitCause:
        kind = ("misfit", job.request, job.id in self._rules.awaiting_nodes, job.accounts)
        if kind not in self._causes:
            self._causes[kind] = WaitCause(remedies=self._list_misfit_remedies(job))
        return self._causes[kind]

    def _list_misfit_remedies(self, job: PendingJob) -> tuple[str, ...]:
        """List what would let a job start that the cluster does not hold now: its nodes take no
        workers, or it is too small.
        """
        fitting = count_fitting(worker_resources(job.request), self._nodes, ())
        fewer = describe_fewer(job.request, min(fitting, self._quotas.count_alone(job)))
        if job.id in self._rules.awaiting_nodes:
            return fewer
        others = self._suggest_reopening(job.request, ())
        others = others or list_misfit_remedies(job.request, self._nodes)
        if too_small := self._quotas.list_too_small(job):
            others = tuple(f"{_raise_quotas(too_small)} and {one}" for one in others)
        return (*fewer, *others)

    def _suggest_reopening(
        self, request: ResourceRequest, taken: Sequence[Resources]
    ) -> tuple[str, ...]:
        """Suggest nodes that take no workers of a job now: each one that is enough, or else all of
        them if that is.
        """
        closed = list_closed(request, self._nodes)
        alone = [node for node in closed if self._fits_with(request, [node], taken)]
        if alone:
            more = f"; {len(alone) - _NAMED_NODES} more would do" if alone[_NAMED_NODES:] else ""
            named = [_reopen(node, request) for node in alone[:_NAMED_NODES]]
            return (*named[:-1], f"{named[-1]}{more}")
        if not closed or not self._fits_with(request, closed, taken):
            return ()
        names = ", ".join(_name(node) for node in closed[:_NAMED_NODES])
        more = f" and {len(closed) - _NAMED_NODES} more" if closed[_NAMED_NODES:] else ""
        return (f"nodes {names}{more} taking workers again",)

    def _fits_with(
        self,
        request: ResourceRequest,
        opened: Sequence[Resources],
        taken: Sequence[Resources],
    ) -> bool:
        """Return whether the smallest group could start if these nodes took its workers."""
        ids = {node.node for node in opened}
        nodes = [replace(one, unschedulable="") if one in opened else one for one in self._nodes]
        return fits_beside(replace(request, avoid=request.avoid - ids), nodes, taken)

    def _list_taken(self) -> list[Resources]:
        return [size for one in self._allocated for size in one.list_workers()]

    def _count_placeable(self, job: PendingJob) -> int:
        most = self._quotas.usage.count_startable(job.accounts, job.request)
        request = replace(job.request, max=most)
        return count_placeable(request, self._nodes, [*self._list_taken(), *self._foreign])

    def _suggest_priority(self, job: PendingJob) -> tuple[str, ...]:
        """Return the lowest priority with which a job takes enough workers from others."""
        higher = {one.priority + 1 for one in self._allocated if one.priority >= job.priority}
        allowed = sorted(priority for priority in higher if priority <= self._max_priority)
        # Whoever takes enough with one priority does so with every higher one.
        place = bisect_left(allowed, 1, key=lambda one: bool(self._list_losing(job, one)))
        if place == len(allowed):
            return ()
        losers = _name_losing(self._list_losing(job, allowed[place]))
        return (f"priority {allowed[place]}: it then takes workers from {losers}",)

    def _suggest_smaller_minimum(self, job: PendingJob, holders: Sequence[str]) -> tuple[str, ...]:
        """Suggest jobs from which it would take workers, as it is more important, if their minimum
        were smaller.
        """
        helping = (
            f"a minimum of {describe_workers(one.request.step)} of job {one.id}: it then takes"
            " workers from that job"
            for one in islice(self._find_in_the_way(job, holders), _NAMED_JOBS)
            if self._list_losing(job, job.priority, shrunk=one)
        )
        return tuple(helping)

    def _find_in_the_way(self, job: PendingJob, holders: Sequence[str]) -> Iterator[AllocatedJob]:
        """Find jobs of which each leaves enough room with one replica, if all others from which
        this one may take workers have their minimum. Packing is much faster than a plan for each.
        """
        giving = {one.id: one for one in self._allocated if job.may_take_from(one)}
        kept = {
            one.id: one.list_workers(
                min(one.allocated_workers, one.request.min) if one.id in giving else None
            )
            for one in self._allocated
        }
        for one in giving.values():
            if one.request.min > one.request.step and one.id in holders:
                smaller = kept | {one.id: kept[one.id][: one.request.step]}
                taken = [size for sizes in smaller.values() for size in sizes]
                if fits_beside(job.request, self._nodes, [*taken, *self._foreign]):
                    yield one

    def _list_losing(
        self, job: PendingJob, priority: int, *, shrunk: AllocatedJob | None = None
    ) -> list[str]:
        """List the jobs that would lose workers to a job with that priority, if one of them had a
        minimum of one replica.
        """
        raised = replace(job, priority=priority, rank=job.rank + priority - job.priority)
        allocated = [
            replace(one, request=replace(one.request, min=one.request.step))
            if one is shrunk
            else one
            for one in self._allocated
        ]
        return list_preempted(
            raised, self._nodes, allocated, foreign=self._foreign, rules=self._rules
        )


def _raise_quotas(accounts: Sequence[str]) -> str:
    return f"a higher quota of {' and of '.join(accounts)}"


def _name_losing(jobs: Sequence[str]) -> str:
    return f"job {jobs[0]}" if len(jobs) == 1 else f"{len(jobs)} jobs"


def _reopen(node: Resources, request: ResourceRequest) -> str:
    if node.unschedulable or node.node not in request.avoid:
        return f"node {_name(node)} taking workers again"
    return f"node {_name(node)} being tried again, 5 minutes after the job could not start there"


def _name(node: Resources) -> str:
    return node.name or node.node
