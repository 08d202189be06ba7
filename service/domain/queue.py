"""Decides which job starts next and what the others wait for; pure, from the rows and the cluster's
totals.

The order of the queue comes from `Repository.queue`: priority, then age.

Ray's free resources lag behind, so they only tell what other programs use
(`service/foreign_use.py`). A running worker counts on its real node, since Ray places processes by
its own rules; the others are packed onto the rest, largest first. A pending job can use what
remains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from service.domain.jobs import Reason
from service.domain.waiting_message import WAITS_ITS_TURN

_WAIT_FOR_OTHERS = "it starts when they release them; or lower workers.cpus or workers.gpus"
_ROUNDING = 1e-6
"""Tolerance: three thirds of a CPU must fill one CPU. Far below any share that users request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """Size limits of a worker group, and resources of each worker."""

    min: int
    max: int
    cpus: float
    gpus: float
    memory: float = 0.0
    """Bytes per worker; 0 if the job sets no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    """A queued job."""

    id: str
    request: ResourceRequest
    priority: int = 0
    """Larger is more important."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources of a node or a worker."""

    cpus: float
    gpus: float
    memory: float = 0.0
    """Bytes: capacity of a node, or memory limit of a worker; 0 for a worker without a limit."""
    node: str = ""
    """Id of the node, or of the node that runs the worker; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Decision on a pending job: the number of workers it starts with, or why it waits."""

    reason: Reason
    workers: int
    message: str


def plan_queue(
    pending: Sequence[PendingJob],
    nodes: Sequence[Resources],
    reserved: Sequence[Resources],
    *,
    foreign: Sequence[Resources] = (),
) -> dict[str, Admission]:
    """Decide admissions by job id; `pending` is in order of priority and age, `reserved` has one
    entry per worker.

    `foreign` is what other programs use on each node; only `nodes` (alive) count.

    A job waits behind an earlier job without capacity, but not behind one that can never fit.
    """
    admissions: dict[str, Admission] = {}
    taken = list(reserved)
    foreign = resources_on_nodes(nodes, foreign)
    num_in_empty_cluster = {
        size: count_fitting(size, nodes, ())
        for size in {worker_resources(job.request) for job in pending}
    }
    blocked_by: str | None = None
    for job in pending:
        capacity = _Capacity(
            nodes=nodes,
            taken=taken,
            foreign=foreign,
            empty=num_in_empty_cluster[worker_resources(job.request)],
        )
        admission = _decide_admission(job.request, capacity, blocked_by=blocked_by)
        admissions[job.id] = admission
        taken += [worker_resources(job.request)] * admission.workers
        if admission.reason is Reason.WAITING_FOR_ROOM and blocked_by is None:
            blocked_by = job.id
    return admissions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Capacity:
    """Capacity for one job: nodes, workers on them, and use by other programs."""

    nodes: Sequence[Resources]
    taken: Sequence[Resources]
    foreign: Sequence[Resources]
    empty: int
    """Number of the job's workers that an empty cluster holds."""


def _decide_admission(
    request: ResourceRequest, capacity: _Capacity, *, blocked_by: str | None
) -> Admission:
    nodes, limit = capacity.nodes, capacity.empty
    if not nodes:
        message = "the cluster has no live node yet; it starts as soon as one joins"
        return Admission(reason=Reason.CLUSTER_UNREACHABLE, workers=0, message=message)
    if limit < request.min:
        message = (
            f"needs {_describe_group(request)}, but the whole cluster ({_describe_total(nodes)})"
            f"{_describe_memory(request, nodes)} holds at most {limit};"
            f" {_suggest_change(request, nodes, limit)}"
        )
        return Admission(reason=Reason.NEVER_FITS, workers=0, message=message)
    if blocked_by is not None:
        return Admission(reason=Reason.WAITING_FOR_ROOM, workers=0, message=WAITS_ITS_TURN)
    now = _count_placeable(request, capacity)
    if now < request.min:
        return Admission(
            reason=Reason.WAITING_FOR_ROOM,
            workers=0,
            message=_describe_shortage(request, now, capacity),
        )
    workers = min(now, request.max)
    return Admission(
        reason=Reason.ADMITTED,
        workers=workers,
        message=f"starts with {workers} of at most {request.max} workers",
    )


def _describe_shortage(request: ResourceRequest, now: int, capacity: _Capacity) -> str:
    """Explain why a job does not fit now: because of other jobs, or of other programs."""
    foreign = (
        f"other programs use {_describe_foreign_use(capacity.foreign, capacity.nodes)}"
        if capacity.foreign
        else ""
    )
    if foreign and _count_placeable(request, replace(capacity, foreign=())) >= request.min:
        return f"needs {_describe_group(request)}, and {foreign}; {_WAIT_FOR_OTHERS}"
    fitting = {0: "none fits", 1: "only one fits"}.get(now, f"only {now} fit")
    message = (
        f"needs {_describe_group(request)}, and {fitting} beside the jobs that run now"
        f" ({_describe_total(capacity.nodes)} in all); it starts when one of them ends"
        f"{f', or at once with workers.min {now}' if now else ''}"
    )
    return f"{message}; {foreign}" if foreign else message


def _describe_foreign_use(used: Sequence[Resources], nodes: Sequence[Resources]) -> str:
    kinds = [("CPU", [size.cpus for size in used], [node.cpus for node in nodes])]
    kinds.append(("GPU", [size.gpus for size in used], [node.gpus for node in nodes]))
    parts = [
        f"{sum(some):g} of the cluster's {sum(every):g} {kind}s"
        for kind, some, every in kinds
        if sum(some)
    ]
    return " and ".join(parts)


def _count_placeable(request: ResourceRequest, capacity: _Capacity) -> int:
    """Number of workers that can start without displacing one that is already counted."""
    taken = [*capacity.taken, *capacity.foreign]
    num_unplaced_before = num_unplaced(taken, capacity.nodes)
    count = min(request.max, count_fitting(worker_resources(request), capacity.nodes, taken))
    while (
        count
        and num_unplaced([*taken, *list_worker_resources(request, count)], capacity.nodes)
        > num_unplaced_before
    ):
        count -= 1
    return count


def count_fitting(worker: Resources, nodes: Sequence[Resources], taken: Iterable[Resources]) -> int:
    """Return how many such workers fit beside the present ones; a worker never spans nodes."""
    free, _ = _pack_workers(taken, nodes)
    return sum(node.count_fitting(worker) for node in free)


def resources_on_nodes(nodes: Sequence[Resources], used: Sequence[Resources]) -> list[Resources]:
    """Keep entries of these nodes: use on a draining node takes no capacity from others."""
    names = {node.node for node in nodes}
    return [size for size in used if size.node in names]


def num_unplaced(taken: Iterable[Resources], nodes: Sequence[Resources]) -> int:
    """Count the workers that do not fit: their node is gone."""
    return _pack_workers(taken, nodes)[1]


def _pack_workers(
    taken: Iterable[Resources], nodes: Sequence[Resources]
) -> tuple[list[_NodeCapacity], int]:
    """Return the free capacity of each node, and the number of workers that do not fit.

    A worker with a known node counts on that node; if the node accepts no workers, it is packed
    elsewhere.
    """
    free = [_NodeCapacity(node.cpus, node.gpus, node.memory) for node in nodes]
    free_by_node = {node.node: one for node, one in zip(nodes, free, strict=True) if node.node}
    unplaced: list[Resources] = []
    for held in taken:
        node = free_by_node.get(held.node)
        if node is None:
            unplaced.append(held)
        else:
            node.take(held)
    unplaced.sort(key=lambda size: (size.gpus, size.cpus, size.memory), reverse=True)
    return free, sum(not _place_worker(held, free) for held in unplaced)


@dataclass(slots=True)
class _NodeCapacity:
    """Free capacity of a node."""

    cpus: float
    gpus: float
    memory: float

    def fits(self, worker: Resources) -> bool:
        enough = self.cpus >= worker.cpus - _ROUNDING and self.gpus >= worker.gpus - _ROUNDING
        return enough and self.memory >= worker.memory

    def take(self, worker: Resources) -> None:
        self.cpus -= worker.cpus
        self.gpus -= worker.gpus
        self.memory -= worker.memory

    def count_fitting(self, worker: Resources) -> int:
        """Return how many such workers fit."""
        parts = [(self.cpus, worker.cpus), (self.gpus, worker.gpus), (self.memory, worker.memory)]
        return max(0, min(int(left / each + _ROUNDING) for left, each in parts if each > 0))


def _place_worker(held: Resources, free: list[_NodeCapacity]) -> bool:
    """Reserve capacity on the fullest node that has enough."""
    fits = [node for node in free if node.fits(held)]
    if not fits:
        return False
    min(fits, key=lambda node: (node.gpus, node.cpus)).take(held)
    return True


def worker_resources(request: ResourceRequest) -> Resources:
    """Resources of one worker of the group."""
    return Resources(cpus=request.cpus, gpus=request.gpus, memory=request.memory)


def list_worker_resources(
    request: ResourceRequest, workers: int, placed: Sequence[str] = ()
) -> list[Resources]:
    """List the resources of each worker of a group; `placed` are the nodes of placed processes."""
    one = worker_resources(request)
    known = [replace(one, node=node) for node in placed[:workers]]
    return [*known, *[one] * (workers - len(known))]


def _describe_group(request: ResourceRequest) -> str:
    each = f"{request.cpus:g} CPU" + (f" and {request.gpus:g} GPU" if request.gpus else "")
    each += f" and {request.memory / 1e9:.1f} GB" if request.memory else ""
    return f"{request.min} workers of {each} each" if request.min > 1 else f"1 worker of {each}"


def _describe_memory(request: ResourceRequest, nodes: Sequence[Resources]) -> str:
    """Describe the memory of the largest node, if the job limits its memory."""
    return (
        f", whose largest node has {_largest_memory(nodes) / 1e9:.1f} GB," if request.memory else ""
    )


def _largest_memory(nodes: Sequence[Resources]) -> float:
    return max(node.memory for node in nodes)


def _suggest_change(request: ResourceRequest, nodes: Sequence[Resources], limit: int) -> str:
    """Suggest a change to a job that does not fit the whole cluster."""
    if request.memory > _largest_memory(nodes):
        return "lower workers.memory, or add larger nodes"
    fewer = "workers.min or " if limit else ""
    return f"lower {fewer}what each worker takes, or add nodes"


def _describe_total(nodes: Sequence[Resources]) -> str:
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    return (
        f"{cpus:g} CPU"
        + (f", {gpus:g} GPU" if gpus else "")
        + f" on {len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    )
