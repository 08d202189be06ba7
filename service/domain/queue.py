"""Who starts next, and what the others wait for: pure, from our own rows' accounting and the
cluster's totals.

Ray's free resources lag behind, so they only tell what other programs use
(`service/foreign_use.py`). A worker whose process runs counts on its real node, since Ray places
processes by rules of its own; all others are packed onto what is left, largest first. What is left
then is what a waiting job can have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from service.domain.jobs import Reason
from service.domain.waiting_message import WAITS_ITS_TURN

_WAIT_FOR_OTHERS = "it starts when they release them; or lower workers.cpus or workers.gpus"
_ROUNDING = 1e-6
"""A third of a CPU three times must fill one CPU; this is far below any share that people ask for.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A worker group: how many at least and at most, and what each takes."""

    min: int
    max: int
    cpus: float
    gpus: float
    memory: float = 0.0
    """Bytes per worker; 0 if the job sets no limit."""


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
    memory: float = 0.0
    """Bytes: capacity of a node, or memory limit of a worker; 0 for a worker without a limit."""
    node: str = ""
    """Id of the node, or of the node that runs the worker; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a waiting job now: admitted with so many workers, or not, and why."""

    reason: Reason
    workers: int
    message: str


def plan_queue(
    waiting: Sequence[Waiting],
    nodes: Sequence[Size],
    reserved: Sequence[Size],
    *,
    foreign: Sequence[Size] = (),
) -> dict[str, Verdict]:
    """A verdict by job id; `waiting` in the order of priority and age, `nodes` alive, `reserved`
    one entry a worker.

    `foreign` is what other programs use of each node; other nodes than `nodes` do not count.

    A job that fits waits behind one that is before it and has no room yet; nobody waits behind one
    that never fits.
    """
    verdicts: dict[str, Verdict] = {}
    taken = list(reserved)
    foreign = sizes_on(nodes, foreign)
    capacity = {size: fitting(size, nodes, ()) for size in {size_of(job.asked) for job in waiting}}
    blocked_by: str | None = None
    for job in waiting:
        room = _Capacity(
            nodes=nodes, taken=taken, foreign=foreign, empty=capacity[size_of(job.asked)]
        )
        verdict = _verdict(job.asked, room, blocked_by=blocked_by)
        verdicts[job.id] = verdict
        taken += [size_of(job.asked)] * verdict.workers
        if verdict.reason is Reason.WAITING_FOR_ROOM and blocked_by is None:
            blocked_by = job.id
    return verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Capacity:
    """Inputs of one job's verdict: nodes, workers on them, and how many of its workers an empty
    cluster holds.
    """

    nodes: Sequence[Size]
    taken: Sequence[Size]
    foreign: Sequence[Size]
    empty: int


def _verdict(asked: Asked, room: _Capacity, *, blocked_by: str | None) -> Verdict:
    nodes, most = room.nodes, room.empty
    if not nodes:
        message = "the cluster has no live node yet; it starts as soon as one joins"
        return Verdict(reason=Reason.CLUSTER_UNREACHABLE, workers=0, message=message)
    if most < asked.min:
        message = (
            f"needs {_group(asked)}, but the whole cluster ({_total(nodes)}){_memory(asked, nodes)}"
            f" holds at most {most}; {_way_to_fit(asked, nodes, most)}"
        )
        return Verdict(reason=Reason.NEVER_FITS, workers=0, message=message)
    if blocked_by is not None:
        return Verdict(reason=Reason.WAITING_FOR_ROOM, workers=0, message=WAITS_ITS_TURN)
    now = _placeable(asked, room)
    if now < asked.min:
        return Verdict(
            reason=Reason.WAITING_FOR_ROOM, workers=0, message=_shortage(asked, now, room)
        )
    workers = min(now, asked.max)
    return Verdict(
        reason=Reason.ADMITTED,
        workers=workers,
        message=f"starts with {workers} of at most {asked.max} workers",
    )


def _shortage(asked: Asked, now: int, room: _Capacity) -> str:
    """Why a job does not fit now: because of other jobs, or of other programs."""
    foreign = f"other programs use {_parts_of(room.foreign, room.nodes)}" if room.foreign else ""
    if foreign and _placeable(asked, replace(room, foreign=())) >= asked.min:
        return f"needs {_group(asked)}, and {foreign}; {_WAIT_FOR_OTHERS}"
    message = (
        f"needs {_group(asked)}, and only {now} fit beside the jobs that run now"
        f" ({_total(room.nodes)} in all); it starts when one of them"
        f" ends{', or lower workers.min' if now else ''}"
    )
    return f"{message}; {foreign}" if foreign else message


def _parts_of(used: Sequence[Size], nodes: Sequence[Size]) -> str:
    kinds = [("CPU", [size.cpus for size in used], [node.cpus for node in nodes])]
    kinds.append(("GPU", [size.gpus for size in used], [node.gpus for node in nodes]))
    parts = [
        f"{sum(some):g} of the cluster's {sum(every):g} {kind}s"
        for kind, some, every in kinds
        if sum(some)
    ]
    return " and ".join(parts)


def _placeable(asked: Asked, room: _Capacity) -> int:
    """Number of workers that can start without displacing one that is already counted."""
    taken = [*room.taken, *room.foreign]
    homeless = num_homeless(taken, room.nodes)
    count = min(asked.max, fitting(size_of(asked), room.nodes, taken))
    while count and num_homeless([*taken, *sizes_of(asked, count)], room.nodes) > homeless:
        count -= 1
    return count


def fitting(worker: Size, nodes: Sequence[Size], taken: Iterable[Size]) -> int:
    """How many such workers fit beside those that are there; a worker never spans nodes."""
    free, _ = _pack(taken, nodes)
    return sum(room.count(worker) for room in free)


def sizes_on(nodes: Sequence[Size], used: Sequence[Size]) -> list[Size]:
    """Keep what is used on these nodes: the use of a draining node takes no capacity from
    others.
    """
    names = {node.node for node in nodes}
    return [size for size in used if size.node in names]


def num_homeless(taken: Iterable[Size], nodes: Sequence[Size]) -> int:
    """How many of these workers have no place: their node is gone."""
    return _pack(taken, nodes)[1]


def _pack(taken: Iterable[Size], nodes: Sequence[Size]) -> tuple[list[_Room], int]:
    """Free capacity of each node, and the number of workers that do not fit.

    A worker with a known node counts on that node; if the node accepts no workers, it is packed
    elsewhere.
    """
    free = [_Room(node.cpus, node.gpus, node.memory) for node in nodes]
    rooms = {node.node: room for node, room in zip(nodes, free, strict=True) if node.node}
    unplaced: list[Size] = []
    for held in taken:
        room = rooms.get(held.node)
        if room is None:
            unplaced.append(held)
        else:
            room.take(held)
    unplaced.sort(key=lambda size: (size.gpus, size.cpus, size.memory), reverse=True)
    return free, sum(not _place(held, free) for held in unplaced)


@dataclass(slots=True)
class _Room:
    """Free capacity of a node."""

    cpus: float
    gpus: float
    memory: float

    def holds(self, worker: Size) -> bool:
        enough = self.cpus >= worker.cpus - _ROUNDING and self.gpus >= worker.gpus - _ROUNDING
        return enough and self.memory >= worker.memory

    def take(self, worker: Size) -> None:
        self.cpus -= worker.cpus
        self.gpus -= worker.gpus
        self.memory -= worker.memory

    def count(self, worker: Size) -> int:
        """How many such workers fit."""
        parts = [(self.cpus, worker.cpus), (self.gpus, worker.gpus), (self.memory, worker.memory)]
        return max(0, min(int(left / each + _ROUNDING) for left, each in parts if each > 0))


def _place(held: Size, free: list[_Room]) -> bool:
    """Take the room from the fullest node that has it."""
    fits = [room for room in free if room.holds(held)]
    if not fits:
        return False
    min(fits, key=lambda room: (room.gpus, room.cpus)).take(held)
    return True


def size_of(asked: Asked) -> Size:
    """What one worker of the group takes."""
    return Size(cpus=asked.cpus, gpus=asked.gpus, memory=asked.memory)


def sizes_of(asked: Asked, workers: int, placed: Sequence[str] = ()) -> list[Size]:
    """Sizes of a group's workers, one entry each; `placed` are the nodes of its placed
    processes.
    """
    one = size_of(asked)
    known = [replace(one, node=node) for node in placed[:workers]]
    return [*known, *[one] * (workers - len(known))]


def _group(asked: Asked) -> str:
    each = f"{asked.cpus:g} CPU" + (f" and {asked.gpus:g} GPU" if asked.gpus else "")
    each += f" and {asked.memory / 1e9:.1f} GB" if asked.memory else ""
    return f"{asked.min} workers of {each} each" if asked.min > 1 else f"1 worker of {each}"


def _memory(asked: Asked, nodes: Sequence[Size]) -> str:
    """What the largest node offers, if the job limits its memory."""
    return (
        f", whose largest node has {_largest_memory(nodes) / 1e9:.1f} GB," if asked.memory else ""
    )


def _largest_memory(nodes: Sequence[Size]) -> float:
    return max(node.memory for node in nodes)


def _way_to_fit(asked: Asked, nodes: Sequence[Size], most: int) -> str:
    """What to change about a job that the whole cluster cannot hold."""
    if asked.memory > _largest_memory(nodes):
        return "lower workers.memory, or add larger nodes"
    fewer = "workers.min or " if most else ""
    return f"lower {fewer}what each worker takes, or add nodes"


def _total(nodes: Sequence[Size]) -> str:
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    return (
        f"{cpus:g} CPU"
        + (f", {gpus:g} GPU" if gpus else "")
        + f" on {len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    )
