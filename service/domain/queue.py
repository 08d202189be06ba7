"""Who starts next, and what the others wait for: pure, from our own rows' accounting and the cluster's totals.

Ray's free resources lag behind, so they are not asked: every worker that a job of ours holds is packed onto the nodes
again, largest first, and what is left is what a waiting job can have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.domain.jobs import Reason

_ROUNDING = 1e-6
"""A third of a CPU three times must fill one CPU; this is far below any share that people ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A worker group: how many at least and at most, and what each takes."""

    min: int
    max: int
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job that waits."""

    id: str
    asked: Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a node has or a worker takes."""

    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a waiting job now: admitted with so many workers, or not, and why."""

    reason: Reason
    workers: int
    message: str


def plan_queue(waiting: Sequence[Waiting], nodes: Sequence[Size], reserved: Sequence[Size]) -> dict[str, Verdict]:
    """A verdict by job id; `waiting` in the order of priority and age, `nodes` alive, `reserved` one entry a worker.

    A job that fits waits behind one that is before it and has no room yet; nobody waits behind one that never fits.
    """
    verdicts: dict[str, Verdict] = {}
    taken = list(reserved)
    blocked_by: str | None = None
    for job in waiting:
        verdict = _verdict(job.asked, nodes, taken, blocked_by=blocked_by)
        verdicts[job.id] = verdict
        taken += [size_of(job.asked)] * verdict.workers
        if verdict.reason is Reason.WAITING_FOR_ROOM and blocked_by is None:
            blocked_by = job.id
    return verdicts


def _verdict(asked: Asked, nodes: Sequence[Size], taken: Sequence[Size], *, blocked_by: str | None) -> Verdict:
    if not nodes:
        message = "the cluster has no live node yet; it starts as soon as one joins"
        return Verdict(reason=Reason.CLUSTER_UNREACHABLE, workers=0, message=message)
    most = fitting(size_of(asked), nodes, ())
    if most < asked.min:
        message = (
            f"needs {_group(asked)}, but the whole cluster ({_total(nodes)}) holds at most {most}; "
            "lower workers.min or what each worker takes, or add nodes"
        )
        return Verdict(reason=Reason.NEVER_FITS, workers=0, message=message)
    if blocked_by is not None:
        return Verdict(
            reason=Reason.WAITING_FOR_ROOM, workers=0, message=f"waits behind job {blocked_by}, which is before it"
        )
    now = fitting(size_of(asked), nodes, taken)
    if now < asked.min:
        message = (
            f"needs {_group(asked)}, and only {now} fit beside the jobs that run now ({_total(nodes)} in all); "
            "it starts when one of them ends, or lower workers.min"
        )
        return Verdict(reason=Reason.WAITING_FOR_ROOM, workers=0, message=message)
    workers = min(now, asked.max)
    return Verdict(
        reason=Reason.ADMITTED, workers=workers, message=f"starts with {workers} of at most {asked.max} workers"
    )


def fitting(worker: Size, nodes: Sequence[Size], taken: Iterable[Size]) -> int:
    """How many such workers fit beside those that are there; a worker never spans nodes."""
    free, _ = _pack(taken, nodes)
    return sum(_count(worker, cpus, gpus) for cpus, gpus in free)


def num_homeless(taken: Iterable[Size], nodes: Sequence[Size]) -> int:
    """How many of these workers have no place: their node is gone."""
    return _pack(taken, nodes)[1]


def _pack(taken: Iterable[Size], nodes: Sequence[Size]) -> tuple[list[list[float]], int]:
    """What is left of each node's CPUs and GPUs, and how many workers have no place."""
    free = [[node.cpus, node.gpus] for node in nodes]
    largest_first = sorted(taken, key=lambda size: (size.gpus, size.cpus), reverse=True)
    return free, sum(not _place(held, free) for held in largest_first)


def _place(held: Size, free: list[list[float]]) -> bool:
    """Take the room from the fullest node that has it."""
    fits = [room for room in free if room[0] >= held.cpus - _ROUNDING and room[1] >= held.gpus - _ROUNDING]
    if not fits:
        return False
    room = min(fits, key=lambda room: (room[1], room[0]))
    room[0] -= held.cpus
    room[1] -= held.gpus
    return True


def _count(worker: Size, cpus: float, gpus: float) -> int:
    by_cpus = int(cpus / worker.cpus + _ROUNDING)
    return by_cpus if worker.gpus <= 0 else min(by_cpus, int(gpus / worker.gpus + _ROUNDING))


def size_of(asked: Asked) -> Size:
    """What one worker of the group takes."""
    return Size(cpus=asked.cpus, gpus=asked.gpus)


def _group(asked: Asked) -> str:
    each = f"{asked.cpus:g} CPU" + (f" and {asked.gpus:g} GPU" if asked.gpus else "")
    return f"{asked.min} workers of {each} each" if asked.min > 1 else f"1 worker of {each}"


def _total(nodes: Sequence[Size]) -> str:
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    return (
        f"{cpus:g} CPU" + (f", {gpus:g} GPU" if gpus else "") + f" on {len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    )


def usable_sizes(nodes: Iterable[Mapping[str, Any]]) -> list[Size]:
    """The nodes of a stored snapshot that take workers: alive and not being drained."""
    usable = (node for node in nodes if node["alive"] and not node.get("draining", False))
    return [Size(cpus=node["cpus"], gpus=node["gpus"]) for node in usable]


def reserved_sizes(groups: Iterable[tuple[int, Asked]]) -> list[Size]:
    """One entry a worker, from (number of workers, what each takes)."""
    return [size_of(asked) for workers, asked in groups for _ in range(workers)]
