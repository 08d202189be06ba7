"""The statistic of the detector: per layer, the norm of the raw gradient's mean over a window's steps and the workers.

Every worker sums its own gradients, before residual and compression. Once a window a count sketch of the sum is
averaged over the workers and its norm is taken: 4 KB a layer on the wire, with a relative error of
about 1/sqrt(2 x 1024) = 2.2 %.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from accordion.errors import StateError

SKETCH_SIZE = 1024
"""Floats of a layer's sketch; smaller layers are sent as they are and are exact."""


class GradientSums:
    """Sums of raw gradients over the finite steps of the open window.

    A step adds into a second set of buffers; `commit` swaps the two, so that a step that was skipped leaves no trace.
    """

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self._shapes = shapes
        self._sums: dict[str, Tensor] = {}
        self._next: dict[str, Tensor] = {}
        self._touched: set[str] = set()
        self.steps = 0
        """Finite steps in the window."""

    def add(self, layer: str, gradient: Tensor) -> None:
        """Add a step's gradient of a layer, to count from the next commit on."""
        if layer not in self._next:
            self._next[layer] = torch.empty(gradient.numel(), dtype=torch.float32, device=gradient.device)
        flat = gradient.reshape(-1)
        if layer in self._sums:
            torch.add(self._sums[layer], flat, out=self._next[layer])
        else:
            self._next[layer].copy_(flat)
        self._touched.add(layer)

    def commit(self) -> None:
        """Count the step."""
        for layer in self._touched:
            old = self._sums.get(layer)
            self._sums[layer] = self._next.pop(layer)
            if old is not None:
                self._next[layer] = old
        self._touched.clear()
        self.steps += 1

    def rollback(self) -> None:
        """Forget the step."""
        self._touched.clear()

    def sketches(self, seed: int, device: torch.device) -> Tensor:
        """One sketch of the mean a layer, (layers, 1024), in the order of the shapes; zeros where nothing was added."""
        sketches = torch.zeros(len(self._shapes), SKETCH_SIZE, device=device)
        for row, layer in zip(sketches, self._shapes, strict=True):
            if layer in self._sums:
                row.copy_(sketch(self._sums[layer], seeded(seed, f"sketch:{layer}")))
        return sketches.div_(max(1, self.steps))

    def clear(self) -> None:
        """Open a new window."""
        self._sums.clear()
        self._next.clear()
        self._touched.clear()
        self.steps = 0

    def state_dict(self) -> dict[str, Any]:
        """The open window."""
        return {"steps": self.steps, "sums": {layer: total.clone() for layer, total in self._sums.items()}}

    def load_state_dict(self, states: Sequence[Mapping[str, Any]], rank: int) -> None:
        """Continue a saved window with the sums of this rank, or with their mean in a group of another size (rank -1).

        Raises:
            StateError: a sum does not have its layer's size.
        """
        self.clear()
        self.steps = states[0]["steps"]
        sums = states[rank]["sums"] if rank >= 0 else _mean([state["sums"] for state in states])
        for layer, total in sums.items():
            if layer not in self._shapes or total.numel() != self._shapes[layer].numel():
                raise StateError(f"saved window: layer {layer!r} with {total.numel()} values is not in this model")
            self._sums[layer] = total.clone()


def sketch(values: Tensor, draw: torch.Generator) -> Tensor:
    """Count sketch of a flat tensor, (1024,): random signs, then the sum over all entries 1024 apart."""
    if values.numel() <= SKETCH_SIZE:
        return torch.nn.functional.pad(values, (0, SKETCH_SIZE - values.numel()))
    signs = torch.randint(0, 2, values.shape, generator=draw, dtype=torch.int8).to(values.device)
    signed = torch.where(signs.bool(), values, -values)
    rows = torch.nn.functional.pad(signed, (0, -values.numel() % SKETCH_SIZE)).view(-1, SKETCH_SIZE)
    return rows.sum(0)


def norms(layers: Iterable[str], sketches: Tensor) -> dict[str, float]:
    """Norm of each layer's mean gradient, from sketches averaged over the workers."""
    lengths = torch.linalg.vector_norm(sketches, dim=1).tolist()
    return dict(zip(layers, lengths, strict=True))


def seeded(seed: int, purpose: str) -> torch.Generator:
    """A generator on the CPU that is the same on every worker; the global one is never touched."""
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _mean(sums_by_rank: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {layer: torch.stack([sums[layer] for sums in sums_by_rank]).mean(0) for layer in sums_by_rank[0]}
