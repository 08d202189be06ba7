"""Decides what the scheduler requests from Ray's autoscaler; pure.

A cluster has one standing request, which replaces the one before. It names the capacity that the
whole cluster shall have, not what shall be free. So it has three parts:

    capacity in use, on each node       tied to that node, since a process cannot move to make room
    workers that have no node yet       jobs that start, and those on a node that is being drained
    the smallest group of waiting jobs  in the order of the queue, of those that would start if
                                        there were room: not of jobs that wait for a quota

If no job waits and every worker has a node, nothing is requested, so that other programs can make
their own request.

The autoscaler may drop a request of which one part is infeasible; `trials.py` finds out
for which jobs it can add nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from accordion_service.domain.capacity.bin_packing import FreeCapacity
from accordion_service.domain.capacity.misfits import describe_group
from accordion_service.domain.capacity.queue import AllocatedJob, PendingJob
from accordion_service.domain.capacity.quota_reservations import measure_usage
from accordion_service.domain.capacity.quotas import QuotaTable, QuotaUsage
from accordion_service.domain.capacity.resources import (
    Resources,
    list_worker_resources,
    resources_on_nodes,
    sort_custom,
)
from accordion_service.domain.capacity.trials import NO_TRIALS, Group, Trials
from accordion_workers.common.node_selectors import LabelCondition, Selector

NODE_ID_LABEL = "ray.io/node-id"
"""Label that Ray gives every node."""
NODE_GROUP_LABEL = "ray.io/node-group"
"""Label of nodes that an autoscaler started: their node type."""
_PADDING = "accordion/tie-"
"""Beginning of names of labels that no node has."""
MAX_TIED_NODES = 64
"""Number of nodes up to which capacity in use is tied to its node: Ray's autoscaler compares each
tied part with each node. On more nodes, all capacity of each of them counts as used: parts that are
not tied could be packed onto one another.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """Kind of node that the autoscaler can add."""

    name: str
    resources: Resources
    """Capacity of such a node, without labels: Ray does not report them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """Capacity that the cluster shall have."""

    held: Group = ()
    """Capacity in use, and workers that are about to start."""
    groups: Mapping[str, Group] = field(default_factory=dict)
    """Smallest group of each waiting job for which nodes are requested, by job id, in the order of
    the queue.
    """
    obstacles: Mapping[str, str] = field(default_factory=dict)
    """Why no node is requested for a waiting job that would start if there were room, by job id."""
    waiting: frozenset[str] = frozenset()
    """IDs of all jobs in the queue."""

    @property
    def bundles(self) -> Group:
        """All parts of the request."""
        return (*self.held, *(worker for group in self.groups.values() for worker in group))


NOTHING = CapacityRequest()


def plan_capacity(
    pending: Sequence[PendingJob],
    allocated: Sequence[AllocatedJob],
    nodes: Sequence[Resources],
    *,
    foreign: Sequence[Resources] = (),
    quotas: QuotaTable,
    node_types: Sequence[NodeType] = (),
    max_workers: int,
    trials: Trials = NO_TRIALS,
    ties_use: bool = True,
) -> CapacityRequest:
    """Plan the request for these jobs; `pending` is in the order of the queue, `nodes` accept
    workers, and `foreign` is what other programs use on each node. Without `node_types` it is not
    known what the autoscaler can add. The request has at most `max_workers` of waiting jobs.
    `ties_use` is whether the autoscaler heeds labels.
    """
    limits = _Limits(nodes, node_types, max_workers=max_workers)
    found = {
        job: limits.find_obstacle(job) for job in list_within_quotas(pending, allocated, quotas)
    }
    able = [job for job, why in found.items() if why is None]
    infeasible = {job.id: job for job in able if _is_infeasible(job, trials)}
    chosen = _choose_jobs([job for job in able if job.id not in infeasible], trials, max_workers)
    unplaced = _list_unplaced(allocated, nodes)
    in_use = _list_in_use(allocated, nodes, foreign, waiting=chosen, ties_use=ties_use)
    is_needed = bool(able or unplaced) and not trials.leaves_out_use
    return CapacityRequest(
        held=(*in_use, *unplaced) if is_needed else (),
        groups={job.id: _list_group(job) for job in chosen},
        obstacles={job.id: why for job, why in found.items() if why is not None}
        | {job_id: _describe_infeasible(job) for job_id, job in infeasible.items()},
        waiting=frozenset(job.id for job in pending),
    )


def list_within_quotas(
    pending: Sequence[PendingJob], allocated: Sequence[AllocatedJob], quotas: QuotaTable
) -> list[PendingJob]:
    """List the jobs that would start with their smallest group if there were room: those that wait
    for no quota.
    """
    usage, unused = measure_usage(allocated, quotas), QuotaUsage(quotas)
    awaited: set[str] = set()
    startable = []
    for job in pending:
        exhausted = usage.list_exhausted(job.accounts, job.request)
        if not exhausted and awaited.isdisjoint(job.accounts):
            usage.add(job.accounts, job.request, job.request.min)
            startable.append(job)
        elif not unused.list_exhausted(job.accounts, job.request):
            if exhausted and awaited.isdisjoint(exhausted):
                usage.add(job.accounts, job.request, job.request.min)  # of its other quotas
            awaited.update(exhausted)  # no later job of these quotas starts before it
    return startable


def _choose_jobs(
    candidates: Sequence[PendingJob], trials: Trials, max_workers: int
) -> list[PendingJob]:
    """Choose the first jobs within the limits of workers and of new jobs."""
    has_accepted = any(job.id in trials.accepted for job in candidates)
    num_new = 0 if trials.restores_accepted and has_accepted else trials.num_tried
    chosen, left = [], max_workers
    for job in candidates:
        is_new = job.id not in trials.accepted
        if is_new and num_new == 0:
            continue
        if job.request.min > left:
            break
        chosen.append(job)
        left -= job.request.min
        num_new -= is_new
    return chosen


class _Limits:
    """What no request can get over: the largest nodes, and the setting."""

    def __init__(
        self, nodes: Sequence[Resources], node_types: Sequence[NodeType], *, max_workers: int
    ) -> None:
        self._node_types = node_types
        self._max_workers = max_workers
        self._sizes = [
            FreeCapacity.of(size) for size in (*(kind.resources for kind in node_types), *nodes)
        ]

    def find_obstacle(self, job: PendingJob) -> str | None:
        """Return why no node may be requested for a job; None if one may."""
        if job.request.min > self._max_workers:
            return (
                f"no nodes are requested: {job.request.min} workers are more than"
                f" ACCORDION_AUTOSCALER_MAX_WORKERS, which is {self._max_workers}"
            )
        worker = replace(_list_group(job)[0], selector=frozenset())
        if self._node_types and not any(size.fits(worker) for size in self._sizes):
            return _describe_misfit(worker, self._node_types)
        return None


def _is_infeasible(job: PendingJob, trials: Trials) -> bool:
    return job.id not in trials.accepted and _list_group(job) in trials.infeasible


def _describe_infeasible(job: PendingJob) -> str:
    lacks = "has these labels and is" if job.request.selector else "is"
    return (
        f"the autoscaler cannot add nodes for {describe_group(job.request)}: no node type"
        f" {lacks} large enough, or its limit is reached"
    )


def _describe_misfit(worker: Resources, node_types: Sequence[NodeType]) -> str:
    amounts = [
        ("GPU", worker.gpus, [kind.resources.gpus for kind in node_types]),
        ("CPU", worker.cpus, [kind.resources.cpus for kind in node_types]),
        ("GB of memory", worker.memory / 1e9, [k.resources.memory / 1e9 for k in node_types]),
    ] + [
        (name, amount, [dict(kind.resources.custom).get(name, 0.0) for kind in node_types])
        for name, amount in worker.custom
    ]
    for unit, needed, found in amounts:
        if needed > max(found):
            plural = "s" if unit in {"GPU", "CPU"} and needed != 1 else ""
            name = node_types[found.index(max(found))].name
            largest = f"largest: {name} with {max(found):g}" if max(found) else "none has any"
            return f"no node type of the autoscaler has {needed:g} {unit}{plural}; {largest}"
    return "no node type of the autoscaler has all that a worker needs"


def _list_group(job: PendingJob) -> Group:
    return tuple(list_worker_resources(job.request, job.request.min))


def _list_unplaced(allocated: Sequence[AllocatedJob], nodes: Sequence[Resources]) -> Group:
    """List the workers that have no node which accepts workers."""
    names = {node.node for node in nodes if node.node}
    workers = [
        replace(size, node="") for size in _list_workers(allocated) if size.node not in names
    ]
    return tuple(size for size in workers if not _is_empty(size))


def _list_workers(allocated: Sequence[AllocatedJob]) -> list[Resources]:
    return [size for job in allocated if not job.leaving for size in job.list_workers()]


def _list_in_use(
    allocated: Sequence[AllocatedJob],
    nodes: Sequence[Resources],
    foreign: Sequence[Resources],
    *,
    waiting: Sequence[PendingJob],
    ties_use: bool,
) -> list[Resources]:
    """List the capacity in use on each node.

    Nodes that the autoscaler did not start, beside some that it did, are left out with what runs
    there: it does not count them.
    """
    started = [node for node in nodes if NODE_GROUP_LABEL in dict(node.labels)] or nodes
    in_use: dict[str, list[Resources]] = {}
    for size in [*_list_workers(allocated), *resources_on_nodes(nodes, foreign)]:
        in_use.setdefault(size.node, []).append(size)
    used_nodes = [node for node in started if node.node and node.node in in_use]
    num_conditions = max((len(job.request.selector) for job in waiting), default=0)
    is_tied = ties_use and len(used_nodes) <= MAX_TIED_NODES
    parts = [
        _add_up(in_use[node.node], node, num_conditions) if is_tied else _take_whole(node)
        for node in sorted(used_nodes, key=lambda node: node.node)
    ]
    return [part for part in parts if not _is_empty(part)]


def _take_whole(node: Resources) -> Resources:
    """Return all capacity of a node, without its labels."""
    memory = node.memory if math.isfinite(node.memory) else 0.0
    return replace(node, memory=memory, labels=frozenset())


def _add_up(sizes: Sequence[Resources], node: Resources, num_conditions: int) -> Resources:
    """Add up what is used on a node, tied to it with more conditions than this number."""
    custom = {
        name: min(most, sum(dict(size.custom).get(name, 0.0) for size in sizes))
        for name, most in node.custom
    }
    return Resources(
        cpus=min(node.cpus, sum(size.cpus for size in sizes)),
        gpus=min(node.gpus, sum(size.gpus for size in sizes)),
        memory=min(node.memory, sum(size.memory for size in sizes)),
        custom=sort_custom({name: amount for name, amount in custom.items() if amount}),
        selector=_tie(node, num_conditions),
        node=node.node,
    )


def _tie(node: Resources, num_conditions: int) -> Selector:
    """Return conditions that only this node meets, more than this number; none for a node without
    an ID.

    Ray's autoscaler places parts with more conditions first. With one more than any waiting job
    has, this part comes before theirs; those besides the node's ID hold for every node.
    """
    node_id = dict(node.labels).get(NODE_ID_LABEL)
    if node_id is None:
        return frozenset()
    names = [f"{_PADDING}{number}" for number in range(num_conditions)]
    padding = [LabelCondition(name, ("none",), excludes=True) for name in names]
    return frozenset([LabelCondition(NODE_ID_LABEL, (node_id,)), *padding])


def _is_empty(part: Resources) -> bool:
    return not (part.cpus or part.gpus or part.memory or part.custom)
