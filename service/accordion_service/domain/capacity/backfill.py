"""Backfill: how many workers of a job can start on capacity that no job ahead of it in the queue
can use; pure.

Ray places the processes, so a worker counts as harmless only if it is harmless on every node where
it fits. It is harmless on a node if, whatever ends there, the node then still has what all jobs
ahead could use of it together if it were empty. So no job ahead starts later than without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from accordion_service.domain.capacity.bin_packing import FreeCapacity, Packing, round_down
from accordion_service.domain.capacity.resources import ResourceRequest, Resources, worker_resources

_NOTHING = Resources(cpus=0.0, gpus=0.0)


class Backfill:
    """Counts harmless workers, for jobs in the order of the queue."""

    def __init__(self, nodes: Sequence[Resources]) -> None:
        self._nodes = [FreeCapacity.of(node) for node in nodes]
        self._ahead: set[Resources] = set()
        self._needs = [[0.0 for _ in node.pairs(_NOTHING)] for node in self._nodes]
        """How much of each resource of each node the jobs ahead can use, all together."""
        self._most_by_size: dict[Resources, int] = {}
        """Number of harmless workers by size, until another size is ahead."""

    def add_ahead(self, request: ResourceRequest) -> None:
        """Note a job that waits: no later one may delay it."""
        size = worker_resources(request)
        if size in self._ahead:
            return
        self._ahead.add(size)
        self._most_by_size.clear()
        for node, needs in zip(self._nodes, self._needs, strict=True):
            count = node.count_fitting(size)
            for index, (_, each) in enumerate(node.pairs(size)):
                needs[index] += count * each

    def count_harmless(self, request: ResourceRequest, packing: Packing) -> int:
        """Return how many of a job's workers can start now, at most its maximum.

        Args:
            request: what the job needs.
            packing: all present workers, the same ones in each call.
        """
        size = worker_resources(request)
        if size not in self._most_by_size:
            self._most_by_size[size] = self._count_harmless(size, packing)
        return request.whole(min(request.max, self._most_by_size[size]))

    def _count_harmless(self, size: Resources, packing: Packing) -> int:
        most = packing.count_fitting(size)
        for needs, free in zip(self._needs, packing.free, strict=True):
            fitting = free.count_fitting(size)
            harmless = _count_beside(needs, size, free)
            if harmless < fitting:
                most = min(most, int(harmless))
        return most


def _count_beside(needs: Sequence[float], size: Resources, free: FreeCapacity) -> float:
    """Return how many workers of a size leave what is needed on a node."""
    return min(
        round_down((left - need) / each) if need > 0 and each > 0 else math.inf
        for (left, each), need in zip(free.pairs(size), needs, strict=True)
    )
