"""Capacity of the cluster that programs other than our jobs use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from service.domain.resources import Resources
from service.runtime.protocol import Node

LAG_S = 5.0
"""How long Ray may count resources of a process as used after it ended. Measured: below 0.1 s on an
idle node; the rest is for a loaded one.
"""
_LEAST = 0.01
"""CPUs or GPUs below which a difference is rounding."""


class ForeignUse:
    """What Ray counts as used on each node, less what our own jobs hold or held a moment ago.

    Free resources lag behind, so this errs on the side of too little: whatever our processes may
    explain is not foreign. A job that is admitted in error returns to the queue without counting as
    lost.
    """

    def __init__(self) -> None:
        self._used: dict[str, Resources] = {}
        """Used capacity by node id, where Ray says so."""
        self._held: deque[tuple[float, Mapping[str, Resources]]] = deque()
        """What our placed processes held on each node, at every survey within `LAG_S`."""

    def record_survey(self, nodes: Sequence[Node], held: Iterable[Resources], now: float) -> None:
        """Store what one survey found; `held` are the workers of our jobs, `now` is monotonic."""
        self._used = {
            node.id: Resources(cpus=node.cpus - node.cpus_free, gpus=node.gpus - node.gpus_free)
            for node in nodes
            if node.cpus_free is not None and node.gpus_free is not None
        }
        self._held.append((now, _by_node(held)))
        while now - self._held[0][0] > LAG_S:
            self._held.popleft()

    def estimate(self, held: Iterable[Resources]) -> list[Resources]:
        """Foreign use by node, beside the workers that our jobs hold now; those without a node may
        be anywhere.
        """
        now = _by_node(held)
        views = [*(past for _, past in self._held), now]
        elsewhere = now.get("", Resources(cpus=0.0, gpus=0.0))
        cpus_left, gpus_left = elsewhere.cpus, elsewhere.gpus
        found: list[Resources] = []
        for node, used in self._used.items():
            cpus = max(
                0.0, used.cpus - max(view[node].cpus if node in view else 0.0 for view in views)
            )
            gpus = max(
                0.0, used.gpus - max(view[node].gpus if node in view else 0.0 for view in views)
            )
            ours = Resources(cpus=min(cpus, cpus_left), gpus=min(gpus, gpus_left))
            cpus_left, gpus_left = cpus_left - ours.cpus, gpus_left - ours.gpus
            if cpus - ours.cpus >= _LEAST or gpus - ours.gpus >= _LEAST:
                found.append(Resources(cpus=cpus - ours.cpus, gpus=gpus - ours.gpus, node=node))
        return found


def _by_node(sizes: Iterable[Resources]) -> dict[str, Resources]:
    """Sums by node; those without one under the empty id."""
    sums: dict[str, Resources] = {}
    for resources in sizes:
        before = sums.get(resources.node, Resources(cpus=0.0, gpus=0.0))
        sums[resources.node] = Resources(
            cpus=before.cpus + resources.cpus, gpus=before.gpus + resources.gpus
        )
    return sums
