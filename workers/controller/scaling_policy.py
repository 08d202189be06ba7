"""What a worker group should be made of, from the processes there are and the size that is wanted;
pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workers.contract import Size

FIRST_PATIENCE_S = 10.0
"""How long the processes of the first group wait, once they are enough, for the others: they mostly
come together, but there may be no room for all.
"""
JOIN_PATIENCE_S = 1.0
"""How long a process that is ready waits for others that start too, where a group trains or was
lost altogether: every switch costs a pause, but there may be no room for the others any more.
"""
LEAVE_PATIENCE_S = 5.0
"""How long a group that would become too small goes on with a process whose node is being drained,
for another to take its place: a new one stands after two seconds, and the shortest notice of a spot
machine is 30.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One worker process."""

    number: int
    """In the order of hiring; never used twice."""
    ready_since: float | None
    """None while it starts."""
    leaving_since: float | None = None
    """Since when its node is known to be drained; None where it stays."""
    node: str | None = None
    """Ray's id of its node; None until it is placed."""
    host: str | None = None
    """Address of that node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingInput:
    """All that the plan depends on."""

    processes: Sequence[Process]
    """Those that live."""
    size: Size
    group: Sequence[int] = ()
    """The group that trains, or trained last, in rank order."""
    training: bool
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPlan:
    """What to do now."""

    num_to_start: int
    to_stop: tuple[int, ...]
    """Processes that are of no more use; never one that trains."""
    group: tuple[int, ...]
    """Who should train, in rank order; empty where nobody can now."""


def plan_scaling(seen: ScalingInput) -> ScalingPlan:
    """What to do. Survivors keep their order, so that rank 0 moves as seldom as it can; newcomers
    follow by number.
    """
    staying = [process for process in seen.processes if process.leaving_since is None]
    least_useful = sorted(staying, key=lambda process: _use(process, seen.group))
    kept = least_useful[max(0, len(staying) - seen.size.target) :]
    useless = {process.number for process in seen.processes} - {process.number for process in kept}
    return ScalingPlan(
        num_to_start=max(0, seen.size.target - len(kept)),
        to_stop=tuple(sorted(useless - set(seen.group if seen.training else ()))),
        group=_group_in_training(seen, kept) if seen.training else _new_group(seen, kept),
    )


def order_nodes(processes: Sequence[Process], group: Sequence[int]) -> tuple[str, ...]:
    """Return the nodes of the placed processes; the process to be removed last comes first."""
    ordered = sorted(processes, key=lambda process: _use(process, group), reverse=True)
    return tuple(process.node for process in ordered if process.node is not None)


def _use(process: Process, group: Sequence[int]) -> tuple[bool, bool, int]:
    """Who only starts goes first, then who does not train, then the last ranks; of equals the
    newest.
    """
    member = process.number in group
    return (
        member,
        process.ready_since is not None,
        -group.index(process.number) if member else -process.number,
    )


def _new_group(seen: ScalingInput, kept: Sequence[Process]) -> tuple[int, ...]:
    ready = _ready(kept, seen.group)
    if len(ready) < seen.size.min:
        return ()
    survived = not set(ready).isdisjoint(seen.group)
    if survived or len(ready) == seen.size.target:
        return ready
    newest = max(process.ready_since or 0.0 for process in kept)
    patience_s = JOIN_PATIENCE_S if seen.group else FIRST_PATIENCE_S
    return ready if seen.now - newest >= patience_s else ()


def _group_in_training(seen: ScalingInput, kept: Sequence[Process]) -> tuple[int, ...]:
    ready, group = _ready(kept, seen.group), tuple(seen.group)
    leaving = [
        one.leaving_since
        for one in seen.processes
        if one.number in group and one.leaving_since is not None
    ]
    if len(ready) < seen.size.min:
        # Too few would be left: somebody may come in time, and else all is saved before the node
        # goes.
        return () if leaving and seen.now - min(leaving) >= LEAVE_PATIENCE_S else group
    if not set(group) <= set(ready):
        return ready
    newest = max((one.ready_since or 0.0 for one in kept if one.number not in group), default=0.0)
    return ready if len(ready) == len(kept) or seen.now - newest >= JOIN_PATIENCE_S else group


def _ready(kept: Sequence[Process], group: Sequence[int]) -> tuple[int, ...]:
    numbers = {process.number for process in kept if process.ready_since is not None}
    survivors = [number for number in group if number in numbers]
    return (*survivors, *sorted(numbers - set(survivors)))
