"""Decides which job starts next and what the others wait for; pure, from the rows and the cluster's
totals.

The order of the queue comes from `QueueReads.waiting`: priority, raised by age if the settings say
so, then age.

    its quotas let it start, and no job waits ahead -> it starts with as many workers as fit
    only cordoned or avoided nodes are large enough -> it waits, and holds up no other job
    a quota is used up                              -> it waits, and later jobs of the same quota
                                                       wait behind it; others do not, but leave the
                                                       first one its smallest group of other quotas
    a job waits for capacity ahead of it            -> it starts only on capacity that no job ahead
                                                       can use (`backfill.py`), or, if jobs may be
                                                       paused, that can be taken back from it

Ray's free resources lag behind, so they only tell what other programs use
(`scheduler/foreign_use.py`). A pending job can use what remains beside the present workers
(`resources.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from accordion_service.domain.capacity.backfill import Backfill
from accordion_service.domain.capacity.bin_packing import (
    Packing,
    count_fitting,
    count_placeable,
    fits_beside,
)
from accordion_service.domain.capacity.misfits import (
    describe_group,
    describe_misfit,
    describe_total,
)
from accordion_service.domain.capacity.quota_reservations import QuotaReservations
from accordion_service.domain.capacity.quotas import QuotaTable, QuotaUsage
from accordion_service.domain.capacity.resources import (
    ResourceRequest,
    Resources,
    list_worker_resources,
    resources_on_nodes,
    worker_resources,
)
from accordion_service.domain.capacity.waiting_message import WAITS_ITS_TURN
from accordion_service.domain.jobs.statuses import Reason

_WAIT_FOR_OTHERS = "it starts when they release them; or lower what each worker takes"

_NAMED_NODES = 2
"""Nodes that take no workers and are named in one message; more are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    """A queued job."""

    id: str
    request: ResourceRequest
    priority: int = 0
    """Larger is more important."""
    rank: float = 0.0
    """Place in the order of the queue: the priority, raised by age. Larger is ahead."""
    accounts: tuple[str, ...] = ()
    """Accounts with a quota that the job counts towards."""

    def may_take_from(self, job: AllocatedJob) -> bool:
        """Return whether a job has to give workers to this one: only if it is less important and
        behind this one in the order of the queue. Otherwise it would get them back at once.
        """
        return job.priority < self.priority and job.rank <= self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedJob:
    """A job that holds workers; `request` has the limits of the number of workers now."""

    id: str
    request: ResourceRequest
    allocated_workers: int
    placed: tuple[str, ...] | None = None
    """Nodes of its placed processes, in the order in which they are kept; None if unknown."""
    starting: bool = False
    """Whether the job has not trained since it was admitted."""
    recovering: bool = False
    """Whether the job has lost its worker group and no other one trains yet."""
    leaving: bool = False
    """Whether the job saves and ends, so that its capacity is soon free."""
    priority: int = 0
    """Larger is more important."""
    rank: float = 0.0
    """Place in the order of the queue: the priority, raised by age. Larger is ahead."""
    accounts: tuple[str, ...] = ()
    """Accounts with a quota that the job counts towards."""

    def list_workers(self, count: int | None = None) -> list[Resources]:
        """List the resources of each of its workers, or of so many."""
        count = self.allocated_workers if count is None else count
        workers = list_worker_resources(self.request, count, self.placed or ())
        if self.placed is not None or self.starting:
            return workers
        running = self.allocated_workers
        anywhere = [replace(size, runs_anywhere=True) for size in workers[:running]]
        return [*anywhere, *workers[running:]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """What the settings and the admins decide about the queue."""

    quotas: QuotaTable = field(default_factory=QuotaTable)
    may_pause: bool = False
    """Whether a job is paused if a more important one cannot start otherwise."""
    awaiting_nodes: frozenset[str] = frozenset()
    """Jobs for which the autoscaler adds nodes: they wait for capacity, also where they need more
    than the whole cluster has now.
    """


DEFAULT_RULES = QueueRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Decision on a pending job: the number of workers it starts with, or why it waits."""

    reason: Reason
    workers: int
    message: str


def plan_queue(
    pending: Sequence[PendingJob],
    nodes: Sequence[Resources],
    allocated: Sequence[AllocatedJob],
    *,
    foreign: Sequence[Resources] = (),
    rules: QueueRules = DEFAULT_RULES,
) -> dict[str, Admission]:
    """Decide admissions by job id; `pending` is in the order of the queue, `allocated` are the jobs
    that hold workers.

    `foreign` is what other programs use on each node; only `nodes` (alive) count.
    """
    plan = _QueuePlan(nodes, allocated, foreign=foreign, rules=rules)
    return {job.id: plan.decide(job) for job in pending}


class _QueuePlan:
    """Decides one job after the other; admitted ones take capacity and quota from later ones."""

    def __init__(
        self,
        nodes: Sequence[Resources],
        allocated: Sequence[AllocatedJob],
        *,
        foreign: Sequence[Resources],
        rules: QueueRules,
    ) -> None:
        self._nodes = nodes
        self._allocated = allocated
        self._foreign = resources_on_nodes(nodes, foreign)
        self._taken = [size for job in allocated for size in job.list_workers()]
        self._rules = rules
        self._quotas = QuotaReservations(rules.quotas, allocated)
        self._beside_all, self._beside_others = Backfill(nodes), Backfill(nodes)
        """Backfill beside all jobs that wait for capacity, and beside all but the first."""
        self._packing = Packing((), nodes)
        self._most_by_size: dict[Resources, int] = {}
        """Number of workers that an empty cluster holds, by size."""
        self._misfits: dict[ResourceRequest, Admission] = {}
        """Why jobs wait that an empty cluster does not hold, by request."""
        self._blocked = False
        """Whether a job waits for capacity, so that later ones may only start beside it."""
        self._all_placed = all(size.node for size in self._taken)
        """Whether the node of every worker is known: another one may turn up where it makes a
        worker harmful that would have been harmless.
        """
        self._may_take_back = False
        """Whether a later job may start on capacity that is then taken back from it."""
        self._lowest_ahead = 0
        """Lowest priority of a job that waits for capacity."""

    def decide(self, job: PendingJob) -> Admission:
        """Decide on the next job of the queue."""
        refused = self._find_obstacle(job)
        if refused is not None:
            return refused
        workers = self._count_workers(job)
        if workers >= job.request.min:
            message = self._describe_start(job, workers)
            self._admit(job, workers)
            return Admission(reason=Reason.ADMITTED, workers=workers, message=message)
        message = WAITS_ITS_TURN if self._blocked else self._describe_shortage(job.request, workers)
        self._block(job)
        return Admission(reason=Reason.WAITING_FOR_ROOM, workers=0, message=message)

    def _find_obstacle(self, job: PendingJob) -> Admission | None:
        """Return why a job waits for anything but capacity; None if it does not."""
        if not self._nodes:
            message = "the cluster has no live node yet; it starts as soon as one joins"
            return Admission(reason=Reason.CLUSTER_UNREACHABLE, workers=0, message=message)
        most = self._count_in_empty_cluster(worker_resources(job.request))
        if most < job.request.min and job.id not in self._rules.awaiting_nodes:
            if job.request not in self._misfits:
                self._misfits[job.request] = self._explain_misfit(job.request, most)
            return self._misfits[job.request]
        exhausted = self._quotas.list_exhausted(job)
        if exhausted:
            if self._quotas.wait(job, exhausted):
                self._block(job)
            message = describe_quota(exhausted, job, self._rules.quotas)
            return Admission(reason=Reason.WAITING_FOR_QUOTA, workers=0, message=message)
        return None

    def _explain_misfit(self, request: ResourceRequest, most: int) -> Admission:
        """Explain why not even the empty cluster holds the smallest group: nodes take no workers
        at the moment, or it is too small.
        """
        if request.avoid or any(node.unschedulable for node in self._nodes):
            size = worker_resources(replace(request, avoid=frozenset()))
            most = count_fitting(size, _as_schedulable(self._nodes), ())
        if most >= request.min:
            names = describe_unschedulable(request, self._nodes)
            message = f"needs {describe_group(request)}; {names}"
            return Admission(reason=Reason.WAITING_FOR_NODE, workers=0, message=message)
        message = describe_misfit(request, self._nodes, most)
        return Admission(reason=Reason.NEVER_FITS, workers=0, message=message)

    def _count_in_empty_cluster(self, size: Resources) -> int:
        if size not in self._most_by_size:
            self._most_by_size[size] = count_fitting(size, self._nodes, ())
        return self._most_by_size[size]

    def _count_workers(self, job: PendingJob) -> int:
        """Return with how many workers a job may start now; fewer than its minimum if it waits."""
        most = self._quotas.usage.count_startable(job.accounts, job.request)
        request = replace(job.request, max=most)
        if not self._blocked:
            return count_placeable(request, self._nodes, [*self._taken, *self._foreign])
        if not self._all_placed:
            return 0
        can_be_paused = self._may_take_back and job.priority < self._lowest_ahead
        backfill = self._beside_others if can_be_paused else self._beside_all
        return backfill.count_harmless(request, self._packing)

    def _admit(self, job: PendingJob, workers: int) -> None:
        self._taken += list_worker_resources(job.request, workers)
        self._all_placed = False
        self._quotas.admit(job, workers)

    def _describe_start(self, job: PendingJob, workers: int) -> str:
        """Describe the start of a job, and the quotas that keep it below its maximum."""
        most = f" of at most {job.request.max}" if workers < job.request.max else ""
        message = f"starts with {workers}{most} worker{'' if job.request.max == 1 else 's'}"
        one_more = replace(job.request, min=min(workers + job.request.step, job.request.max))
        capping = self._quotas.usage.list_exhausted(job.accounts, one_more)
        if workers == job.request.max or not capping:
            return message
        named = _name_quotas(capping, self._rules.quotas)
        return f"{message}; {named} {'allow' if len(capping) > 1 else 'allows'} no more now"

    def _block(self, job: PendingJob) -> None:
        """Let later jobs start only beside this one."""
        if self._blocked:
            self._beside_others.add_ahead(job.request)
        else:
            self._blocked = True
            self._packing = Packing([*self._taken, *self._foreign], self._nodes)
            self._may_take_back = self._rules.may_pause and not self._starts_soon(job)
            self._lowest_ahead = job.priority
        self._lowest_ahead = min(self._lowest_ahead, job.priority)
        self._beside_all.add_ahead(job.request)
        self._quotas.reserve(job)

    def _starts_soon(self, job: PendingJob) -> bool:
        """Return whether a job starts once jobs have left, or less important ones are paused."""
        staying = [one for one in self._allocated if not one.leaving and not job.may_take_from(one)]
        taken = [size for one in staying for size in one.list_workers()]
        return fits_beside(job.request, self._nodes, taken)

    def _describe_shortage(self, request: ResourceRequest, now: int) -> str:
        """Explain why a job does not fit now: because of other jobs, of other programs, or of nodes
        that take no workers; or that the autoscaler has not added its nodes yet.
        """
        if self._count_in_empty_cluster(worker_resources(request)) < request.min:
            return f"needs {describe_group(request)}; it starts when the autoscaler has added nodes"
        message = self._describe_use(request, now)
        anywhere, taken = replace(request, avoid=frozenset()), [*self._taken, *self._foreign]
        if count_placeable(anywhere, _as_schedulable(self._nodes), taken) < request.min:
            return message
        return f"{message}; {describe_unschedulable(request, self._nodes)}"

    def _describe_use(self, request: ResourceRequest, now: int) -> str:
        """Explain which jobs and programs use what a job needs."""
        used = _describe_foreign_use(request, self._foreign, self._nodes)
        foreign = f"other programs use {used}" if used else ""
        if foreign and count_placeable(request, self._nodes, self._taken) >= request.min:
            return f"needs {describe_group(request)}, and {foreign}; {_WAIT_FOR_OTHERS}"
        none = "none fits" if request.step == 1 else "no whole replica fits"
        fitting = {0: none, 1: "only one fits"}.get(now, f"only {now} fit")
        message = (
            f"needs {describe_group(request)}, and {fitting} beside the jobs that run now"
            f" ({describe_total(self._nodes)} in all); it starts when one of them ends"
            f"{f', or at once with workers.min {now}' if now else ''}"
        )
        return f"{message}; {foreign}" if foreign else message


def _as_schedulable(nodes: Sequence[Resources]) -> list[Resources]:
    """Return the nodes as if all of them took workers."""
    return [replace(node, unschedulable="") for node in nodes]


def describe_unschedulable(request: ResourceRequest, nodes: Sequence[Resources]) -> str:
    """Name the nodes that could hold a worker of a job but take none, and how to use them again."""
    found = sorted({_explain_closed(node) for node in list_closed(request, nodes)})
    more = len(found) - _NAMED_NODES
    shown = "; ".join(found[:_NAMED_NODES])
    return f"{shown}; {more} more: 'accordion nodes' lists them" if more > 0 else shown


def list_closed(request: ResourceRequest, nodes: Sequence[Resources]) -> list[Resources]:
    """List the nodes that are large enough for a worker of a job, but take none: because they are
    unschedulable, or because its workers could not start there.
    """
    size = worker_resources(replace(request, avoid=frozenset()))
    closed = [node for node in nodes if node.unschedulable or node.node in request.avoid]
    return [node for node in closed if count_fitting(size, _as_schedulable([node]), ())]


def _explain_closed(node: Resources) -> str:
    return node.unschedulable or (
        f"its workers could not start on node {node.name or node.node} a moment ago: its log says"
        " what that node lacks"
    )


def describe_quota(exhausted: Sequence[str], job: PendingJob, quotas: QuotaTable) -> str:
    """Explain why quotas do not let a job start. The text has the limits and not what is in use,
    so that it is not stored anew at every change.
    """
    unused = QuotaUsage(quotas)
    too_small = unused.list_exhausted(job.accounts, job.request)
    if too_small:
        most = unused.count_startable(job.accounts, job.request)
        fewer = f"lower workers.min to {most}, or " if most else ""
        return (
            f"needs {describe_group(job.request)} at the same time, more than"
            f" {_name_quotas(too_small, quotas)} allow{'' if len(too_small) > 1 else 's'};"
            f" {fewer}ask an admin for a higher quota"
        )
    them = "them" if len(exhausted) > 1 else "it"
    return (
        f"waits for {_name_quotas(exhausted, quotas)}; it starts when jobs that count towards"
        f" {them} end, or with a higher quota"
    )


def _name_quotas(accounts: Sequence[str], quotas: QuotaTable) -> str:
    """Name the quotas of accounts with their limits, such as `the quota of user ada (2 jobs)`."""
    named = []
    for account in accounts:
        origin = "" if account in quotas.quotas else ", the quota of any other user"
        named.append(f"of {account} ({quotas.find_quota(account).describe()}{origin})")
    return f"the quota{'s' if len(named) > 1 else ''} {' and '.join(named)}"


def _describe_foreign_use(
    request: ResourceRequest, used: Sequence[Resources], nodes: Sequence[Resources]
) -> str:
    """Describe what other programs use of the resources that a job needs."""
    kinds: list[tuple[str, float, Callable[[Resources], float]]] = [
        ("CPUs", request.cpus, lambda size: size.cpus),
        ("GPUs", request.gpus, lambda size: size.gpus),
        ("GB", request.memory, lambda size: round(size.memory / 1e9, 1)),
        *((name, each, partial(_amount_of, name)) for name, each in request.custom),
    ]
    parts = [
        f"{sum(map(amount, used)):g} of the cluster's {sum(map(amount, nodes)):g} {unit}"
        for unit, needed, amount in kinds
        if needed and sum(map(amount, used))
    ]
    return " and ".join(parts)


def _amount_of(name: str, size: Resources) -> float:
    return dict(size.custom).get(name, 0.0)
