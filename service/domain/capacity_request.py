"""Decides what the scheduler asks Ray's autoscaler for; pure.

A cluster has one standing request, which replaces the one before. It names the capacity that the
whole cluster shall have, not what shall be free. So it has three parts:

    capacity in use, on each node       tied to that node, since a process cannot move to make room
    workers that have no node yet       jobs that start, and those on a node that is being drained
    the smallest group of waiting jobs  in the order of the queue, of those that would start if
                                        there were room: not of jobs that wait for a quota

The autoscaler may drop a request of which one part is impossible; `capacity_trials.py` finds out
which jobs it can serve.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from service.domain.bin_packing import FreeCapacity
from service.domain.capacity_trials import NO_TRIALS, Group, Trials
from service.domain.queue import AllocatedJob, PendingJob, describe_group, measure_usage
from service.domain.quotas import QuotaTable, QuotaUsage
from service.domain.resources import (
    Labels,
    Resources,
    list_worker_resources,
    resources_on_nodes,
    sort_custom,
)

NODE_ID_LABEL = "ray.io/node-id"
"""Label that Ray gives every node."""
NODE_GROUP_LABEL = "ray.io/node-group"
"""Label of nodes that an autoscaler started: their node type."""
MAX_TIED_NODES = 64
"""Number of nodes up to which capacity in use is tied to its node: Ray's autoscaler compares each
tied part with each node.
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
    asked: Mapping[str, Group] = field(default_factory=dict)
    """Smallest group of each waiting job for which nodes are asked for, by job id, in the order of
    the queue.
    """
    obstacles: Mapping[str, str] = field(default_factory=dict)
    """Why no node is asked for a waiting job that would start if there were room, by job id."""
    is_complete: bool = True
    """False if other jobs are tried after these."""

    @property
    def bundles(self) -> Group:
        """All parts of the request."""
        return (*self.held, *(worker for group in self.asked.values() for worker in group))


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
) -> CapacityRequest:
    """Plan the request for these jobs; `pending` is in the order of the queue, `nodes` accept
    workers, and `foreign` is what other programs use on each node. Without `node_types` it is not
    known what the autoscaler can add. The request has at most `max_workers` of waiting jobs.
    """
    startable = list_startable(pending, allocated, quotas)
    found = {
        job.id: _find_obstacle(job, nodes, node_types, max_workers=max_workers, trials=trials)
        for job in startable
    }
    obstacles = {job_id: why for job_id, why in found.items() if why is not None}
    candidates = [job for job in startable if job.id not in obstacles]
    chosen = _choose_jobs(candidates, trials, max_workers)
    num_new = sum(job.id not in trials.accepted for job in candidates)
    held = _list_held(allocated, nodes, foreign if chosen else (), waiting=chosen)
    return CapacityRequest(
        held=() if trials.leaves_out_use else held,
        asked={job.id: _list_group(job) for job in chosen},
        obstacles=obstacles,
        is_complete=not (trials.is_cautious and num_new > 1),
    )


def list_startable(
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
            awaited.update(exhausted)  # no later job of these quotas starts before it
    return startable


def _choose_jobs(
    candidates: Sequence[PendingJob], trials: Trials, max_workers: int
) -> list[PendingJob]:
    """Choose the first jobs within the limit; with caution only one that was not accepted yet."""
    chosen, left, may_try = [], max_workers, True
    for job in candidates:
        is_new = job.id not in trials.accepted
        if is_new and not may_try:
            continue
        if job.request.min > left:
            break
        chosen.append(job)
        left -= job.request.min
        may_try = may_try and not (is_new and trials.is_cautious)
    return chosen


def _find_obstacle(
    job: PendingJob,
    nodes: Sequence[Resources],
    node_types: Sequence[NodeType],
    *,
    max_workers: int,
    trials: Trials,
) -> str | None:
    """Return why no node may be asked for a job; None if one may."""
    if job.request.min > max_workers:
        return (
            f"the autoscaler is not asked: {job.request.min} workers are more than"
            f" ACCORDION_AUTOSCALER_MAX_WORKERS, which is {max_workers}"
        )
    group = _list_group(job)
    sizes = [*(kind.resources for kind in node_types), *nodes]
    unlabelled = replace(group[0], labels=frozenset())
    if node_types and not any(FreeCapacity.of(size).fits(unlabelled) for size in sizes):
        return _describe_misfit(unlabelled, node_types)
    if group in trials.refused and job.id not in trials.accepted:
        return (
            f"the autoscaler cannot add nodes for {describe_group(job.request)}: no node type is"
            " large enough, or its limit is reached"
        )
    return None


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


def _list_held(
    allocated: Sequence[AllocatedJob],
    nodes: Sequence[Resources],
    foreign: Sequence[Resources],
    *,
    waiting: Sequence[PendingJob],
) -> Group:
    """List the capacity in use on each node, and workers without a node.

    Nodes that the autoscaler did not start, beside some that it did, are left out with what runs
    there: it does not count them.
    """
    workers = [size for job in allocated if not job.leaving for size in job.list_workers()]
    names = {node.node for node in nodes if node.node}
    started = [node for node in nodes if NODE_GROUP_LABEL in dict(node.labels)] or nodes
    in_use: dict[str, list[Resources]] = {}
    for size in [*workers, *resources_on_nodes(nodes, foreign)]:
        in_use.setdefault(size.node, []).append(size)
    used_nodes = [node for node in started if node.node in names & in_use.keys()]
    tied_by = {NODE_ID_LABEL, *(name for job in waiting for name, _ in job.request.labels)}
    parts = [
        _add_up(in_use[node.node], node, tied_by if len(used_nodes) <= MAX_TIED_NODES else ())
        for node in sorted(used_nodes, key=lambda node: node.node)
    ]
    homeless = [replace(size, node="") for size in workers if size.node not in names]
    return tuple(part for part in [*parts, *homeless] if not _is_empty(part))


def _add_up(sizes: Sequence[Resources], node: Resources, tied_by: Collection[str]) -> Resources:
    """Add up what is used on a node, with its labels of these names.

    Ray's autoscaler places parts with more labels first. With the node's ID and all names that
    waiting jobs ask for, this part comes before any of theirs.
    """
    labels: Labels = frozenset(label for label in node.labels if label[0] in tied_by)
    has_id = NODE_ID_LABEL in dict(labels)
    custom = {
        name: min(most, sum(dict(size.custom).get(name, 0.0) for size in sizes))
        for name, most in node.custom
    }
    return Resources(
        cpus=min(node.cpus, sum(size.cpus for size in sizes)),
        gpus=min(node.gpus, sum(size.gpus for size in sizes)),
        memory=min(node.memory, sum(size.memory for size in sizes)),
        custom=sort_custom({name: amount for name, amount in custom.items() if amount}),
        labels=labels if has_id else frozenset(),
        node=node.node,
    )


def _is_empty(part: Resources) -> bool:
    return not (part.cpus or part.gpus or part.memory or part.custom)
