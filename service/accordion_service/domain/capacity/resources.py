"""Resources of nodes, workers and worker groups; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from accordion_workers.common.node_selectors import Selector

Custom = tuple[tuple[str, float], ...]
"""Amounts of Ray's custom resources, sorted by name."""
Labels = frozenset[tuple[str, str]]
"""Labels of nodes as pairs of name and value."""


def sort_custom(amounts: Mapping[str, float]) -> Custom:
    """Return the amounts of custom resources in a form that can be compared and hashed."""
    return tuple(sorted(amounts.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """Size limits of a worker group, and resources of each worker."""

    min: int
    max: int
    cpus: float
    gpus: float
    memory: float = 0.0
    """Bytes per worker; 0 if the job sets no limit."""
    custom: Custom = ()
    selector: Selector = frozenset()
    """What the labels of a worker's node must be."""
    avoid: frozenset[str] = frozenset()
    """IDs of the nodes on which its workers cannot start for now."""
    step: int = 1
    """Workers that hold one model together: a group has a multiple of it, as both limits are."""

    def whole(self, workers: int) -> int:
        """Return the most workers, of so many, that are a multiple of `step`."""
        return workers - workers % self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources of a node or a worker."""

    cpus: float
    gpus: float
    memory: float = 0.0
    """Bytes: capacity of a node, or memory limit of a worker; 0 for a worker without a limit."""
    custom: Custom = ()
    labels: Labels = frozenset()
    """Labels of a node; empty for a worker."""
    selector: Selector = frozenset()
    """What the labels of a worker's node must be; empty for a node."""
    node: str = ""
    """Id of the node, or of the node that runs the worker; empty if unknown."""
    unschedulable: str = ""
    """Why a node takes no more workers, in one sentence; those that it has count on it. Empty for a
    node that takes some, and for a worker.
    """
    runs_anywhere: bool = False
    """Whether a worker runs on a node that is not known, which may be an unschedulable one."""
    avoid: frozenset[str] = frozenset()
    """IDs of the nodes on which a worker cannot start for now; empty for a node."""
    name: str = ""
    """Name of a node; empty for a worker."""


def resources_on_nodes(nodes: Sequence[Resources], used: Sequence[Resources]) -> list[Resources]:
    """Keep entries of these nodes: use on a draining node takes no capacity from others."""
    names = {node.node for node in nodes}
    return [size for size in used if size.node in names]


def worker_resources(request: ResourceRequest) -> Resources:
    """Resources of one worker of the group."""
    return Resources(
        cpus=request.cpus,
        gpus=request.gpus,
        memory=request.memory,
        custom=request.custom,
        selector=request.selector,
        avoid=request.avoid,
    )


def list_worker_resources(
    request: ResourceRequest, workers: int, placed: Sequence[str] = ()
) -> list[Resources]:
    """List the resources of each worker of a group; `placed` are the nodes of placed processes."""
    size = worker_resources(request)
    known = [replace(size, node=node) for node in placed[:workers]]
    return [*known, *[size] * (workers - len(known))]
