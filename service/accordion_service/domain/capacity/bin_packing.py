"""Packs workers onto nodes: how many fit, and which do not; pure.

A running worker counts on its real node, since Ray places processes by its own rules; the others
are packed onto the rest, largest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from accordion_service.domain.capacity.resources import (
    Labels,
    ResourceRequest,
    Resources,
    list_worker_resources,
    worker_resources,
)
from accordion_workers.common.node_selectors import node_matches

_ROUNDING = 1e-6
"""Tolerance: three thirds of a CPU must fill one CPU. Far below any share that users request."""


@dataclass(slots=True)
class FreeCapacity:
    """Free capacity of a node."""

    cpus: float
    gpus: float
    memory: float
    custom: dict[str, float] = field(default_factory=dict)
    """What is free of each custom resource that the node has."""
    labels: Labels = frozenset()
    unschedulable: bool = False
    """Whether no more workers may be placed there."""
    node: str = ""
    """ID of the node."""

    @classmethod
    def of(cls, node: Resources) -> FreeCapacity:
        """Return the capacity of an empty node."""
        custom, unschedulable = dict(node.custom), bool(node.unschedulable)
        return cls(
            cpus=node.cpus,
            gpus=node.gpus,
            memory=node.memory,
            custom=custom,
            labels=node.labels,
            unschedulable=unschedulable,
            node=node.node,
        )

    def fits(self, worker: Resources) -> bool:
        """Return whether the node has capacity for a worker."""
        enough = self.cpus >= worker.cpus - _ROUNDING and self.gpus >= worker.gpus - _ROUNDING
        return (
            enough
            and self.memory >= worker.memory
            and self._accepts(worker)
            and all(self.custom[name] >= amount - _ROUNDING for name, amount in worker.custom)
        )

    def take(self, worker: Resources, count: int = 1) -> None:
        """Reserve the resources of so many workers."""
        self.cpus -= worker.cpus * count
        self.gpus -= worker.gpus * count
        self.memory -= worker.memory * count
        for name, amount in worker.custom:
            if name in self.custom:
                self.custom[name] -= amount * count

    def count_fitting(self, worker: Resources) -> int:
        """Return how many such workers fit."""
        if not self._accepts(worker):
            return 0
        return min(round_down(free / each) for free, each in self.pairs(worker) if each > 0)

    def _accepts(self, worker: Resources) -> bool:
        """Return whether the worker may be placed or already run here: the node is schedulable, not
        one to avoid, and has the labels and kinds of resources that the worker needs.
        """
        has_kinds = all(name in self.custom for name, _ in worker.custom)
        is_open = worker.runs_anywhere or not self.unschedulable
        is_open = is_open and has_kinds and self.node not in worker.avoid
        return is_open and (not worker.selector or node_matches(worker.selector, self.labels))

    def pairs(self, worker: Resources) -> Iterator[tuple[float, float]]:
        """Return what is free, and what a worker takes, of each resource of the node."""
        yield self.cpus, worker.cpus
        yield self.gpus, worker.gpus
        yield self.memory, worker.memory
        needs = dict(worker.custom)
        for name, free in self.custom.items():
            yield free, needs.get(name, 0.0)


class Packing:
    """Workers on nodes: what remains free on each node, and how many workers have no place."""

    def __init__(self, taken: Iterable[Resources], nodes: Sequence[Resources]) -> None:
        self.free = [FreeCapacity.of(node) for node in nodes]
        """Free capacity of each node, in the order of the nodes."""
        by_node = {node.node: free for node, free in zip(nodes, self.free, strict=True)}
        by_node.pop("", None)
        elsewhere: Counter[Resources] = Counter()
        for held in taken:
            node = by_node.get(held.node)
            if node is None:
                elsewhere[replace(held, node="") if held.node else held] += 1
            else:
                node.take(held)
        # A worker whose node accepts no workers is packed elsewhere, like one that starts.
        self.num_unplaced = sum(
            _place_workers(size, elsewhere[size], self.free)
            for size in sorted(elsewhere, key=_packing_order, reverse=True)
        )
        """Number of workers that do not fit: their node is gone."""

    def count_fitting(self, worker: Resources) -> int:
        """Return how many more such workers fit; a worker never spans nodes."""
        return sum(node.count_fitting(worker) for node in self.free)


def count_fitting(worker: Resources, nodes: Sequence[Resources], taken: Iterable[Resources]) -> int:
    """Return how many such workers fit beside the present ones; a worker never spans nodes."""
    return Packing(taken, nodes).count_fitting(worker)


def num_unplaced(taken: Iterable[Resources], nodes: Sequence[Resources]) -> int:
    """Count the workers that do not fit: their node is gone."""
    return Packing(taken, nodes).num_unplaced


def fits_beside(
    request: ResourceRequest, nodes: Sequence[Resources], taken: Sequence[Resources]
) -> bool:
    """Return whether the smallest group of a job could start beside these workers."""
    present = Packing(taken, nodes)
    if present.count_fitting(worker_resources(request)) < request.min:
        return False
    group = list_worker_resources(request, request.min)
    return num_unplaced([*taken, *group], nodes) <= present.num_unplaced


def count_placeable(
    request: ResourceRequest, nodes: Sequence[Resources], taken: Sequence[Resources]
) -> int:
    """Return how many of a job's workers can start, at most its maximum, without displacing one
    that is already counted.
    """
    present = Packing(taken, nodes)
    count = request.whole(min(request.max, present.count_fitting(worker_resources(request))))
    while count:
        group = list_worker_resources(request, count)
        if num_unplaced([*taken, *group], nodes) <= present.num_unplaced:
            return count
        count -= request.step
    return 0


def _packing_order(size: Resources) -> tuple[Any, ...]:
    """Return the sort key of workers: those that fit on few nodes, and then large ones, are placed
    first.
    """
    few = bool(size.selector or size.avoid), bool(size.custom)
    amounts = size.gpus, size.cpus, size.memory, size.custom, sorted(size.selector)
    return *few, *amounts, not size.runs_anywhere


def round_down(workers: float) -> int:
    """Round a number of workers down to a whole one, at least 0."""
    return max(0, int(workers + _ROUNDING))


def _place_workers(size: Resources, count: int, free: list[FreeCapacity]) -> int:
    """Place workers of a size, each on the fullest node that has capacity; return how many remain.

    A node that takes one becomes fuller, so it takes as many as fit before the next one does.
    Unschedulable nodes are the last, so that no job grows into capacity that may be used.
    """
    fits = [node for node in free if node.fits(size)]
    for node in sorted(fits, key=lambda node: (node.unschedulable, node.gpus, node.cpus)):
        taken = min(count, node.count_fitting(size))
        node.take(size, taken)
        count -= taken
    return count
