"""Decides which worker processes to start and stop and which form the next group; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from accordion_workers.records.contract import Size

FIRST_PATIENCE_S = 10.0
"""How long the first group waits for the remaining processes once it has enough of them. They
usually become ready together, but the cluster may lack room for all.
"""
JOIN_PATIENCE_S = 1.0
"""How long a ready process waits for others that are starting, while a group trains or after all of
its members were lost. Each new group costs a pause, but the others may never find room.
"""
LEAVE_PATIENCE_S = 5.0
"""How long a group that would become too small keeps a process on a draining node, so that a
replacement can start. A new process is ready in two seconds; the shortest notice of a spot machine
is 30 seconds.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One worker process."""

    number: int
    """Number in order of start; never reused."""
    ready_since: float | None
    """Time at which it became ready; None while it starts."""
    leaving_since: float | None = None
    """Time at which its node was first seen draining; None while the node stays."""
    node: str | None = None
    """Ray's id of its node; None until it is placed."""
    host: str | None = None
    """Address of that node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingInput:
    """Input of `plan_scaling`."""

    processes: Sequence[Process]
    """Live processes."""
    size: Size
    group: Sequence[int] = ()
    """The group that trains, or trained last, in rank order."""
    training: bool
    now: float
    num_shards: int = 1
    """Processes that hold one model together: a group has whole replicas of as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPlan:
    """Processes to start and to stop, and the group that should train."""

    num_to_start: int
    to_stop: tuple[int, ...]
    """Processes no longer needed; never one that trains."""
    group: tuple[int, ...]
    """Processes that should train, in rank order; empty if none can now."""


def plan_scaling(seen: ScalingInput) -> ScalingPlan:
    """Decide which processes to start and stop and which should train.

    Survivors keep their order, so rank 0 rarely moves; new processes follow by number.
    """
    target = seen.size.target - seen.size.target % seen.num_shards
    staying = [process for process in seen.processes if process.leaving_since is None]
    whole = _list_whole_replicas(seen, {process.number for process in staying})
    least_useful = sorted(
        staying, key=lambda one: (one.number in whole, *_usefulness_of(one, seen.group))
    )
    kept = least_useful[max(0, len(staying) - target) :]
    useless = {process.number for process in seen.processes} - {process.number for process in kept}
    return ScalingPlan(
        num_to_start=max(0, target - len(kept)),
        to_stop=tuple(sorted(useless - set(seen.group if seen.training else ()))),
        group=_update_group(seen, kept) if seen.training else _form_group(seen, kept),
    )


def order_nodes(processes: Sequence[Process], group: Sequence[int]) -> tuple[str, ...]:
    """Return the nodes of the placed processes; the process to be removed last comes first."""
    ordered = sorted(processes, key=lambda process: _usefulness_of(process, group), reverse=True)
    return tuple(process.node for process in ordered if process.node is not None)


def _usefulness_of(process: Process, group: Sequence[int]) -> tuple[bool, bool, int]:
    """Sort key, least useful first: starting processes, then idle ones, then the highest ranks;
    newest first on ties.
    """
    member = process.number in group
    return (
        member,
        process.ready_since is not None,
        -group.index(process.number) if member else -process.number,
    )


def _form_group(seen: ScalingInput, kept: Sequence[Process]) -> tuple[int, ...]:
    ready = _order_ready(kept, seen)
    if len(ready) < seen.size.min:
        return ()
    survived = not set(ready).isdisjoint(seen.group)
    if survived or len(ready) + seen.num_shards > seen.size.target:
        return ready
    newest = max(process.ready_since or 0.0 for process in kept)
    patience_s = JOIN_PATIENCE_S if seen.group else FIRST_PATIENCE_S
    return ready if seen.now - newest >= patience_s else ()


def _update_group(seen: ScalingInput, kept: Sequence[Process]) -> tuple[int, ...]:
    ready, group = _order_ready(kept, seen), tuple(seen.group)
    leaving = [
        one.leaving_since
        for one in seen.processes
        if one.number in group and one.leaving_since is not None
    ]
    if len(ready) < seen.size.min:
        # Too few would remain. A replacement may become ready in time; otherwise the group saves
        # before the node goes.
        return () if leaving and seen.now - min(leaving) >= LEAVE_PATIENCE_S else group
    if not set(group) <= set(ready):
        return ready
    newest = max((one.ready_since or 0.0 for one in kept if one.number not in group), default=0.0)
    return ready if len(ready) == len(kept) or seen.now - newest >= JOIN_PATIENCE_S else group


def _order_ready(kept: Sequence[Process], seen: ScalingInput) -> tuple[int, ...]:
    node_of = {process.number: process.node for process in kept if process.ready_since is not None}
    survivors = [number for number in seen.group if number in node_of]
    ready = (*survivors, *sorted(node_of.keys() - set(survivors)))
    if seen.num_shards == 1:
        return ready
    return _form_replicas(ready, node_of, seen)


def _form_replicas(
    ready: Sequence[int], node_of: Mapping[int, str | None], seen: ScalingInput
) -> tuple[int, ...]:
    """Return whole replicas of these processes: those of the group that lost none, then of
    processes on one node, then of those that are left. Fewer than a replica remain idle.
    """
    size, members = seen.num_shards, _list_whole_replicas(seen, set(ready))
    nodes = dict.fromkeys(node_of[one] for one in ready)
    for found in [*({node} for node in nodes), set(nodes)]:
        free = [one for one in ready if node_of[one] in found and one not in members]
        members += free[: len(free) - len(free) % size]
    return tuple(members)


def _list_whole_replicas(seen: ScalingInput, alive: Collection[int]) -> list[int]:
    """Return the members of the group's replicas that lost none, in rank order."""
    size, group = seen.num_shards, tuple(seen.group)
    before = [group[start : start + size] for start in range(0, len(group), size)]
    return [one for replica in before if set(replica) <= set(alive) for one in replica]
