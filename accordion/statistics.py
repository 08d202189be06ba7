"""The statistic of the detector: per layer, the norm of the raw gradient's mean over a window's steps and the workers.

Every worker adds each step's gradient, before residual and compression, to a count sketch of 1,024 floats a layer:
every entry times a random sign, summed over all entries 1,024 apart. A sketch is linear, so sums over steps and the
mean over workers are sketches too. Its norm is the tensor's within a relative standard error of about
1/sqrt(2 x 1024), which is 2.2 %. A step reads the gradient once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from accordion.errors import StateError

SKETCH_SIZE = 1024
"""Floats of a layer's sketch; smaller layers are kept as they are and are exact."""
_TILE = 256 * SKETCH_SIZE
"""Entries that are multiplied at once; the signs and the sum of the tiles stay in a core's cache."""


class GradientSums:
    """Sketches of the sums of raw gradients over the finite steps of the open window.

    A step's sketch is kept aside until `commit`, so that a step that was skipped leaves no trace.
    """

    def __init__(self, shapes: Mapping[str, torch.Size], seed: int) -> None:
        self._shapes = shapes
        self._seed = seed
        self._rows = {layer: row for row, layer in enumerate(shapes)}
        self._signs: Signs | None = None
        self._sums = torch.zeros(len(shapes), SKETCH_SIZE)
        self._step = torch.zeros_like(self._sums)
        self._squares = torch.zeros(len(shapes))
        self.steps = 0
        """Finite steps in the window."""

    def add(self, layer: str, gradient: Tensor, *, scale: float = 1.0) -> None:
        """Add `scale` times a step's gradient of a layer, to count from the next commit on."""
        if self._signs is None:
            self._signs = Signs(self._shapes, self._seed, gradient.device)
            self._to(gradient.device)
        self._signs.sketch_(self._step[self._rows[layer]], gradient, scale=scale)

    def step_total(self) -> Tensor:
        """The sum over the step's sketches: not finite if a gradient of the step was not."""
        return self._step.sum()

    def commit(self) -> None:
        """Count the step."""
        self._sums.add_(self._step)
        self._squares.add_(self._step.square().sum(1))
        self._step.zero_()
        self.steps += 1

    def rollback(self) -> None:
        """Forget the step."""
        self._step.zero_()

    def summary(self, device: torch.device) -> Tensor:
        """One row a layer, in the order of the shapes: a sketch of the mean over the steps, and the mean square norm.

        (layers, 1025); zeros where nothing was added.
        """
        return torch.cat([self._sums, self._squares.unsqueeze(1)], dim=1).to(device).div_(max(1, self.steps))

    def clear(self) -> None:
        """Open a new window."""
        self._sums.zero_()
        self._squares.zero_()
        self._step.zero_()
        self.steps = 0

    def state_dict(self) -> dict[str, Any]:
        """The open window."""
        rows = torch.cat([self._sums, self._squares.unsqueeze(1)], dim=1)
        return {"steps": self.steps, "sums": {layer: rows[row].clone() for layer, row in self._rows.items()}}

    def load_state_dict(self, states: Sequence[Mapping[str, Any]], rank: int) -> None:
        """Continue a saved window with the sums of this rank, or with their mean in a group of another size (rank -1).

        Raises:
            StateError: a sum is of a layer that this model does not have, or no sketch.
        """
        self.clear()
        for state in states if rank < 0 else [states[rank]]:
            for layer, total in state["sums"].items():
                if layer not in self._rows or total.shape != (SKETCH_SIZE + 1,):
                    raise StateError(f"saved window: layer {layer!r} with {total.numel()} values is not in this model")
                row, total = self._rows[layer], total.to(self._sums)
                self._sums[row] += total[:-1]
                self._squares[row] += total[-1]
        if rank < 0:
            self._sums /= len(states)
            self._squares /= len(states)
        self.steps = states[0]["steps"]

    def _to(self, device: torch.device) -> None:
        self._sums, self._step, self._squares = (t.to(device) for t in (self._sums, self._step, self._squares))


class Signs:
    """The random signs of all layers' sketches, the same on every worker, and the memory to apply them.

    A layer is cut into tiles of 256 rows of 1,024. A tile takes its signs from one pool, from a place on that differs
    between the tiles modulo 1,024, so that no two entries of a column share a sign; and all of them times a sign of
    its own, so that what two tiles have in common does not add up. One multiply-add over a tile that stays in the
    cache is all that a step costs.
    """

    def __init__(self, shapes: Mapping[str, torch.Size], seed: int, device: torch.device) -> None:
        largest = max((shape.numel() for shape in shapes.values()), default=0)
        tiles = -(-largest // _TILE)
        pool = (1 + tiles // SKETCH_SIZE) * _TILE + SKETCH_SIZE
        draw = seeded(seed, "sketch")
        self._pool = _random_signs(min(pool, largest + SKETCH_SIZE), draw).to(device)
        self._starts = torch.randperm(SKETCH_SIZE, generator=draw).tolist()
        self._turns = _random_signs(tiles, draw).tolist()
        self._tile = torch.empty(min(_TILE, largest), device=device)

    def sketch_(self, total: Tensor, values: Tensor, *, scale: float = 1.0) -> None:
        """Add the sketch of `scale * values` to `total`, (1024,)."""
        flat = values.reshape(-1)
        if flat.numel() <= SKETCH_SIZE:
            total[: flat.numel()].add_(flat, alpha=scale)
            return
        for number, part in enumerate(torch.split(flat, _TILE)):
            start = self._starts[number % SKETCH_SIZE] + number // SKETCH_SIZE * _TILE
            signs, tile = self._pool[start : start + part.numel()], self._tile[: part.numel()]
            if number == 0:
                torch.mul(part, signs, out=tile)
            else:
                tile.addcmul_(part, signs, value=self._turns[number])
        size = min(flat.numel(), _TILE)
        rows, rest = divmod(size, SKETCH_SIZE)
        total.add_(self._tile[: size - rest].view(rows, -1).sum(0), alpha=scale)
        total[:rest].add_(self._tile[size - rest : size], alpha=scale)


def norms(layers: Iterable[str], summary: Tensor) -> dict[str, float]:
    """Norm of each layer's mean gradient, from a summary averaged over the workers."""
    lengths = torch.linalg.vector_norm(summary[:, :SKETCH_SIZE], dim=1).tolist()
    return dict(zip(layers, lengths, strict=True))


def root_mean_squares(layers: Iterable[str], summary: Tensor) -> dict[str, float]:
    """Root mean square of the norms of single workers' gradients of single steps, likewise."""
    return dict(zip(layers, summary[:, SKETCH_SIZE].sqrt().tolist(), strict=True))


def seeded(seed: int, purpose: str) -> torch.Generator:
    """A generator on the CPU that is the same on every worker; the global one is never touched."""
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _random_signs(count: int, draw: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (count,), generator=draw, dtype=torch.int8).mul_(2).sub_(1).float()
