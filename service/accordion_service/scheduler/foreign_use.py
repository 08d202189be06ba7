"""Capacity of the cluster that programs other than our jobs use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from accordion_service.domain.capacity.resources import Resources, sort_custom
from accordion_service.runtime.protocol import Node

LAG_S = 5.0
"""How long Ray may count resources of a process as used after it ended. Measured: below 0.1 s on an
idle node; the rest is for a loaded one.
"""
_LEAST = 0.01
"""CPUs, GPUs or units of a custom resource below which a difference is rounding."""
_LEAST_BYTES = 1e6
"""Bytes of memory below which a difference is rounding."""
_CPUS, _GPUS, _MEMORY = "CPU", "GPU", "memory"
_Amounts = Mapping[str, float]
"""Amounts by the name of the resource in Ray."""


class ForeignUse:
    """What Ray counts as used on each node, less what our own jobs hold or held a moment ago.

    Free resources lag behind, so this errs on the side of too little: whatever our processes may
    explain is not foreign. A job that is admitted in error returns to the queue without counting as
    lost.
    """

    def __init__(self) -> None:
        self._used: dict[str, _Amounts] = {}
        """Used capacity by node id, where Ray says so."""
        self._held: deque[tuple[float, Mapping[str, _Amounts]]] = deque()
        """What our placed processes held on each node, at every survey within `LAG_S`."""

    def record_survey(self, nodes: Sequence[Node], held: Iterable[Resources], now: float) -> None:
        """Store what one survey found; `held` are the workers of our jobs, `now` is monotonic."""
        self._used = {node.id: _find_used(node) for node in nodes}
        self._held.append((now, _by_node(held)))
        while now - self._held[0][0] > LAG_S:
            self._held.popleft()

    def estimate(self, held: Iterable[Resources]) -> list[Resources]:
        """Foreign use by node, beside the workers that our jobs hold now; those without a node may
        be anywhere.
        """
        now = _by_node(held)
        views = [*(past for _, past in self._held), now]
        elsewhere = dict(now.get("", {}))
        found: list[Resources] = []
        for node, used in self._used.items():
            foreign: dict[str, float] = {}
            for name, amount in used.items():
                ours = max(view.get(node, {}).get(name, 0.0) for view in views)
                more = max(0.0, amount - ours)
                unplaced = min(more, elsewhere.get(name, 0.0))
                elsewhere[name] = elsewhere.get(name, 0.0) - unplaced
                if more - unplaced >= (_LEAST_BYTES if name == _MEMORY else _LEAST):
                    foreign[name] = more - unplaced
            if foreign:
                found.append(_build_resources(node, foreign))
        return found


def _find_used(node: Node) -> _Amounts:
    """Return what Ray counts as used on a node; nothing of what it does not tell."""
    pairs = [
        (_CPUS, node.cpus, node.cpus_free),
        (_GPUS, node.gpus, node.gpus_free),
        (_MEMORY, node.memory_bytes, node.memory_bytes_free),
        *((name, most, node.custom_free.get(name)) for name, most in node.custom.items()),
    ]
    return {name: most - free for name, most, free in pairs if free is not None}


def _by_node(sizes: Iterable[Resources]) -> Mapping[str, _Amounts]:
    """Sums by node; those without one under the empty id."""
    sums: dict[str, dict[str, float]] = {}
    for size in sizes:
        amounts = {_CPUS: size.cpus, _GPUS: size.gpus, _MEMORY: size.memory, **dict(size.custom)}
        here = sums.setdefault(size.node, {})
        for name, amount in amounts.items():
            here[name] = here.get(name, 0.0) + amount
    return sums


def _build_resources(node: str, amounts: _Amounts) -> Resources:
    custom = {k: amount for k, amount in amounts.items() if k not in {_CPUS, _GPUS, _MEMORY}}
    return Resources(
        cpus=amounts.get(_CPUS, 0.0),
        gpus=amounts.get(_GPUS, 0.0),
        memory=amounts.get(_MEMORY, 0.0),
        custom=sort_custom(custom),
        node=node,
    )
