"""Plans how many workers each job may hold, from current allocations, the queue and the nodes;
pure.

    every group fits                        -> jobs shrink only for a more important pending job
    no pending job waits for capacity       -> jobs grow in queue order while every group fits, as
                                               far as their quotas allow
    a more important job waits for capacity -> jobs of lower priority shrink towards their minimum,
    or for a quota                             and are then paused if that is allowed, the least
                                               important first, if it lets that job start
    a node is gone or being drained         -> jobs shrink in reverse queue order, never below their
                                               minimum, and only if it helps a group to fit

A running job never grows into capacity or a quota that a queued job waits for, even if that job
cannot use all of it yet. A job for which the autoscaler adds nodes keeps others only from what it
can use of the present ones. A plan is stable: the next plan over the same cluster and queue changes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from accordion_service.domain.capacity.backfill import Backfill
from accordion_service.domain.capacity.bin_packing import (
    Packing,
    count_fitting,
    fits_beside,
    num_unplaced,
)
from accordion_service.domain.capacity.queue import (
    DEFAULT_RULES,
    AllocatedJob,
    PendingJob,
    QueueRules,
)
from accordion_service.domain.capacity.quotas import QuotaUsage
from accordion_service.domain.capacity.resources import (
    ResourceRequest,
    Resources,
    list_worker_resources,
    resources_on_nodes,
    worker_resources,
)
from accordion_service.domain.jobs.status_table import LEAVING
from accordion_service.domain.jobs.statuses import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """New number of workers that a job may hold, and why it changed."""

    workers: int
    """0 pauses the job until there is capacity for it again."""
    why: str


def build_allocated_job(
    job_id: str,
    status: Status,
    request: ResourceRequest,
    *,
    allocated_workers: int,
    placed: Sequence[str] | None = None,
    priority: int = 0,
    rank: float = 0.0,
    accounts: Sequence[str] = (),
) -> AllocatedJob:
    """Build the plan's view of a job: only training jobs grow; pausing and stopping ones do not
    change.
    """
    leaving = status in LEAVING
    if leaving:
        request = replace(request, min=allocated_workers, max=allocated_workers)
    elif status is Status.STARTING:
        request = replace(request, max=min(request.max, allocated_workers))
    return AllocatedJob(
        id=job_id,
        request=request,
        allocated_workers=allocated_workers,
        placed=None if placed is None else tuple(placed),
        starting=status is Status.STARTING,
        recovering=status is Status.RECOVERING,
        leaving=leaving,
        priority=priority,
        rank=rank,
        accounts=tuple(accounts),
    )


def find_unplaceable(jobs: Sequence[AllocatedJob], nodes: Sequence[Resources]) -> set[str]:
    """Find jobs admitted in error: their minimum does not fit beside the placed processes."""
    settled = [size for job in jobs for size in job.list_workers(len(job.placed or ()))]
    num_unplaced_before = num_unplaced(settled, nodes)
    missing = {
        job.id: min(job.request.min, job.allocated_workers) - len(job.placed or ())
        for job in jobs
        if job.starting
    }
    return {
        job.id
        for job in jobs
        if missing.get(job.id, 0) > 0
        and num_unplaced([*settled, *list_worker_resources(job.request, missing[job.id])], nodes)
        > num_unplaced_before
    }


def find_stranded(jobs: Sequence[AllocatedJob], nodes: Sequence[Resources]) -> set[str]:
    """Find jobs without a worker group whose minimum fits only on unschedulable nodes, or on those
    where their workers cannot start.
    """
    recovering = {job.id for job in jobs if job.recovering}
    is_limited = any(node.unschedulable for node in nodes) or any(job.request.avoid for job in jobs)
    if not recovering or not is_limited:
        return set()
    schedulable = [replace(node, unschedulable="") for node in nodes]
    anywhere = [replace(job, request=replace(job.request, avoid=frozenset())) for job in jobs]
    return recovering & (find_homeless(jobs, nodes) - find_homeless(anywhere, schedulable))


def find_homeless(jobs: Sequence[AllocatedJob], nodes: Sequence[Resources]) -> set[str]:
    """Find training jobs that lack processes of their minimum for which there is no capacity, even
    if every job had its minimum; of several, the last in order.
    """
    kept, found = list(jobs), set()
    for index in reversed(range(len(kept))):
        job = kept[index]
        if job.starting or job.leaving or job.placed is None:
            continue
        if len(job.placed) >= min(job.request.min, job.allocated_workers):
            continue
        reduced = replace(job, allocated_workers=len(job.placed))
        with_job = [size for one in kept for size in _list_minimum(one)]
        kept[index] = reduced
        without = [size for one in kept for size in _list_minimum(one)]
        if num_unplaced(with_job, nodes) > num_unplaced(without, nodes):
            found.add(job.id)
        else:
            kept[index] = job
    return found


def _list_minimum(job: AllocatedJob) -> list[Resources]:
    """List the workers of a job's smallest group; a starting job's as far as they are placed."""
    few = len(job.placed or ()) if job.starting else job.request.min
    return job.list_workers(min(few, job.allocated_workers))


def plan_allocations(
    jobs: Sequence[AllocatedJob],
    pending: Sequence[PendingJob],
    nodes: Sequence[Resources],
    *,
    foreign: Sequence[Resources] = (),
    rules: QueueRules = DEFAULT_RULES,
) -> dict[str, Allocation]:
    """Plan changes by job id; `jobs` are in order of priority and age, `pending` in that of the
    queue, `nodes` accept workers.

    `foreign` is what other programs use on each node: no job grows into it or shrinks because of
    it.

    What a job lacks changes nothing for other jobs if there is no capacity for its minimum, even if
    they had only theirs.

    Without any known node the capacity is unknown: then only the limits that users set apply.
    """
    plan = _Plan(jobs, nodes, foreign=foreign, rules=rules)
    fits = not nodes or plan.all_fit()
    if not fits:
        plan.homeless = find_homeless(jobs, nodes)
        fits = bool(plan.homeless) and plan.all_fit()
    if not fits:
        # If only processes of starting jobs do not fit, jobs that train keep their workers.
        only_starts = _Plan([_without_unplaced(job) for job in jobs], nodes).all_fit()
        shrinkable = [job for job in jobs if job.starting or not only_starts]
        plan.shrink_all(shrinkable)
    elif nodes:
        waiting = plan.list_startable(pending)
        if not plan.reclaim_for_first(waiting):
            plan.grow_all(waiting)
    return plan.list_changes()


def _without_unplaced(job: AllocatedJob) -> AllocatedJob:
    """Reduce a starting job to its placed processes."""
    return (
        replace(job, allocated_workers=len(job.placed or ()))
        if job.starting and len(job.placed or ()) < job.allocated_workers
        else job
    )


class _Plan:
    """Builds allocations one job after the other; a minimum above the allocation waits until it
    fits.
    """

    def __init__(
        self,
        jobs: Sequence[AllocatedJob],
        nodes: Sequence[Resources],
        *,
        foreign: Sequence[Resources] = (),
        rules: QueueRules = DEFAULT_RULES,
    ) -> None:
        self._jobs = jobs
        self._foreign = resources_on_nodes(nodes, foreign)
        self._nodes = nodes
        self._rules = rules
        self.allocations = {
            job.id: Allocation(
                workers=min(job.allocated_workers, job.request.max),
                why=f"users allow at most {job.request.max}",
            )
            for job in jobs
        }
        self._without_nodes: set[str] = set()
        """IDs of waiting jobs that need more nodes, which the autoscaler is adding."""
        self._reserved, self._reserved_in_empty = Backfill(nodes), Backfill(nodes)
        """What these jobs can use of the nodes: beside the workers there, and of empty ones."""
        self._num_fitting_by_size: dict[Resources, int] = {}
        """Number of additional workers that fit, by worker size; cached for all jobs of that size.
        """
        self.homeless: set[str] = set()
        """Jobs whose missing processes do not count."""

    def list_changes(self) -> dict[str, Allocation]:
        """Return allocations that differ from the current number of workers."""
        return {
            job.id: self.allocations[job.id]
            for job in self._jobs
            if self.allocations[job.id].workers != job.allocated_workers
        }

    def all_fit(self) -> bool:
        """Return whether every worker that counts has a node."""
        return self._num_unplaced() == 0

    def list_startable(self, pending: Sequence[PendingJob]) -> list[PendingJob]:
        """List the jobs that unused quotas, and an empty cluster or the nodes that they await,
        would let start.
        """
        capacity = {
            size: count_fitting(size, self._nodes, ())
            for size in {worker_resources(job.request) for job in pending}
        }
        unused = QuotaUsage(self._rules.quotas)
        allowed = [job for job in pending if not unused.list_exhausted(job.accounts, job.request)]
        large = {
            job.id for job in allowed if capacity[worker_resources(job.request)] < job.request.min
        }
        self._without_nodes = large & self._rules.awaiting_nodes
        for job in allowed:
            if job.id in self._without_nodes:
                self._reserved.add_ahead(job.request)
                self._reserved_in_empty.add_ahead(job.request)
        never_fit = large - self._without_nodes
        return [job for job in allowed if job.id not in never_fit]

    def reclaim_for_first(self, waiting: Sequence[PendingJob]) -> bool:
        """Let the first job start that can by taking workers from less important ones, as far as
        the first one that waits for capacity; return whether there is one of either kind. Jobs that
        cannot start before nodes are added do not count.
        """
        usage, tried = self._measure_usage(self._jobs), set()
        for job in waiting:
            if not self._may_start_beside(job):
                continue
            kind = (job.request, job.priority, job.accounts)
            if kind not in tried and self._reclaim_workers(job):
                return True
            if not usage.list_exhausted(job.accounts, job.request):
                return True
            tried.add(kind)
        return False

    def grow_all(self, waiting: Sequence[PendingJob]) -> None:
        """Let jobs grow, except into quotas that a job waits for, and into capacity that is
        reserved for jobs that need more nodes.
        """
        usage = self._measure_usage(self._jobs)
        awaited = {
            account
            for job in waiting
            for account in usage.list_exhausted(job.accounts, job.request)
        }
        for job in self._jobs:
            if awaited.isdisjoint(job.accounts) and job.id not in self.homeless:
                self._grow(job)

    def shrink_all(self, jobs: Sequence[AllocatedJob]) -> None:
        """Shrink jobs, the last in order first, as long as that places more workers: fewer workers
        of one job may be packed so that fewer of another one help as well.
        """
        before = self._num_unplaced() + 1
        while self._num_unplaced() < before:
            before = self._num_unplaced()
            for job in reversed(jobs):
                self._shrink(job)
            for job in jobs:
                self._give_back(job)

    def _shrink(self, job: AllocatedJob) -> None:
        """Remove the fewest workers that place as many as removing all above the minimum would."""
        before = self.allocations[job.id]
        if before.workers <= job.request.min:
            return
        best = self._num_unplaced_with(job, job.request.min)
        enough, too_many = job.request.min, before.workers + job.request.step
        while too_many - enough > job.request.step:
            tried = enough + job.request.whole((too_many - enough) // 2)
            enough, too_many = (
                (tried, too_many)
                if self._num_unplaced_with(job, tried) <= best
                else (enough, tried)
            )
        why = "the nodes that accept workers have no capacity for more"
        self.allocations[job.id] = (
            before if enough == before.workers else Allocation(workers=enough, why=why)
        )

    def _give_back(self, job: AllocatedJob) -> None:
        """Return workers to the job whose removal no longer helps after a larger job shrank."""
        kept, num_unplaced_before = self.allocations[job.id], self._num_unplaced()
        most, step = min(job.allocated_workers, job.request.max), job.request.step
        for workers in range(most, kept.workers, -step):
            if self._num_unplaced_with(job, workers) <= num_unplaced_before:
                return
        self.allocations[job.id] = kept

    def _grow(self, job: AllocatedJob) -> None:
        """Grow into free capacity. Packing all workers again may need more than the count of what
        fits suggests, so fewer are tried as well.
        """
        kept = self.allocations[job.id]
        allowed = self._measure_usage(self._jobs).count_additional(job.accounts, job.request)
        wanted = min(job.request.max - kept.workers, allowed)
        fitting = (
            min(
                self._count_harmless(job, wanted),
                self._count_fitting(worker_resources(job.request)),
            )
            if wanted > 0
            else 0
        )
        fitting = job.request.whole(kept.workers + fitting) - kept.workers
        for more in range(fitting, 0, -job.request.step):
            self.allocations[job.id] = Allocation(
                workers=kept.workers + more, why="there is free capacity and no job waits for it"
            )
            if self.all_fit():
                self._num_fitting_by_size.clear()
                return
        self.allocations[job.id] = kept
        if fitting > 0:
            self._num_fitting_by_size[worker_resources(job.request)] = 0

    def _reclaim_workers(self, head: PendingJob) -> bool:
        """Let a pending job start by taking as few workers as possible from less important jobs;
        return whether any were taken.

        Nothing changes if that is not enough, or not needed once leaving jobs are gone. Capacity
        of a job that has just left may count as used by other programs for a moment, so only jobs
        are a reason to take workers.
        """
        others = [job for job in self._jobs if head.may_take_from(job) and not job.leaving]
        if not others or self._fits(head, ()):
            return False
        before = dict(self.allocations)
        if not self._reclaim_for(head, others):
            self.allocations = before
            return False
        for job in others:
            self._return_workers(job, before[job.id], head)
        return True

    def _reclaim_for(self, head: PendingJob, others: Sequence[AllocatedJob]) -> bool:
        """Take workers until a pending job fits, from the least important job first; return whether
        it does.
        """
        why = f"job {head.id} with priority {head.priority} needs the capacity"
        for job in reversed(others):
            workers = min(self.allocations[job.id].workers, job.request.min)
            self.allocations[job.id] = Allocation(workers=workers, why=why)
            if self._fits(head, self._foreign):
                return True
        if not self._rules.may_pause or self._fits(head, ()):
            return False
        for job in reversed(others):
            self.allocations[job.id] = Allocation(workers=0, why=why)
            if self._fits(head, self._foreign):
                return True
        return False

    def _return_workers(self, job: AllocatedJob, before: Allocation, head: PendingJob) -> None:
        """Return as many workers to a job as a pending one does not need."""
        taken = self.allocations[job.id]
        if taken.workers == before.workers:
            self.allocations[job.id] = before
            return
        least, step = max(taken.workers, job.request.min - 1), job.request.step
        for workers in range(before.workers, least, -step):
            kept = before if workers == before.workers else replace(taken, workers=workers)
            self.allocations[job.id] = kept
            if self._fits(head, self._foreign):
                return
        self.allocations[job.id] = taken

    def _fits(self, head: PendingJob, foreign: Sequence[Resources]) -> bool:
        """Return whether a pending job could start once the leaving jobs are gone."""
        staying = [job for job in self._jobs if not job.leaving]
        usage = self._measure_usage(staying)
        if usage.list_exhausted(head.accounts, head.request):
            return False
        taken = [*self._list_workers(staying), *foreign]
        return fits_beside(head.request, self._nodes, taken)

    def _measure_usage(self, jobs: Sequence[AllocatedJob]) -> QuotaUsage:
        usage = QuotaUsage(self._rules.quotas)
        for job in jobs:
            usage.add(job.accounts, job.request, self.allocations[job.id].workers)
        return usage

    def _count_fitting(self, size: Resources) -> int:
        if size not in self._num_fitting_by_size:
            self._num_fitting_by_size[size] = count_fitting(
                size, self._nodes, [*self._list_workers(), *self._foreign]
            )
        return self._num_fitting_by_size[size]

    def _may_start_beside(self, job: PendingJob) -> bool:
        """Return whether an empty cluster has room for a job beside what is reserved."""
        if not self._without_nodes:
            return True
        if job.id in self._without_nodes:
            return False
        empty = Packing((), self._nodes)
        return self._reserved_in_empty.count_harmless(job.request, empty) >= job.request.min

    def _count_harmless(self, job: AllocatedJob, wanted: int) -> int:
        """Return how many more workers take nothing from the jobs that need more nodes."""
        if not self._without_nodes:
            return wanted
        workers = self._list_workers()
        if not all(size.node for size in workers):
            return 0  # an unplaced worker may take what seems to be free
        packing = Packing([*workers, *self._foreign], self._nodes)
        return self._reserved.count_harmless(replace(job.request, max=wanted), packing)

    def _num_unplaced_with(self, job: AllocatedJob, workers: int) -> int:
        self.allocations[job.id] = replace(self.allocations[job.id], workers=workers)
        return self._num_unplaced()

    def _num_unplaced(self) -> int:
        return num_unplaced(self._list_workers(), self._nodes)

    def _count_workers(self, job: AllocatedJob) -> int:
        workers = self.allocations[job.id].workers
        return min(workers, len(job.placed or ())) if job.id in self.homeless else workers

    def _list_workers(self, jobs: Sequence[AllocatedJob] | None = None) -> list[Resources]:
        return [
            size
            for job in (self._jobs if jobs is None else jobs)
            for size in job.list_workers(self._count_workers(job))
        ]
