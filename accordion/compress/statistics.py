"""Statistic of the detector: the norm of each layer's raw gradient, averaged over a window.

The mean is over the window's steps and over the workers. Every worker adds each step's gradient,
before residual and compression, to a count sketch of 1,024 floats per layer: every entry is added
with a random sign to a random column. A sketch is linear, so sums over steps and means over workers
are sketches too. Its norm estimates the tensor's norm with a relative standard error of about
1/sqrt(2 x 1024), or 2.2 %, and up to 7 % if the values of a large layer are alike. The error is the
same for sparse gradients, in which few input features or embedding rows are active. The exception
is a handful of active rows with equal values: if two of them collide, the error reaches 20 %. A
step reads the gradient once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from accordion.base.devices import copy_to_device
from accordion.base.errors import StateError

SKETCH_SIZE = 1024
"""Floats in a layer's sketch; smaller layers are stored exactly."""
_ROWS = 64
_SEGMENT = 512
"""Entries of a tile that share a sign; shorter segments make the batched product slower."""
_TILE = 64_781
"""Length of a tile in entries; tiles are summed before they get signs and columns.

It is a prime between 63 and 64 rows. Entries a multiple of the layer's width apart fall on the same
place only if a few rows nearly fill a whole number of tiles. No width of 2^a x {1, 3, 5, 7, 9, 25,
49} from 512 to two million does: one to eight of its rows differ by 205 entries or more from every
whole number of tiles.
"""
_SQUARES, _OWED, _LEFT = range(3)
"""Columns of the energies: of the gradients, and of what a layer owed before and after compression.
"""
_STATE_VERSION = 2
"""Version of a saved window's fields, and of the signs and columns; a window of another version
cannot be continued.
"""
_SAVED_SHAPE = torch.Size([SKETCH_SIZE + 3])
"""Shape of a saved layer: its sketch and its energies."""


class GradientSums:
    """Sketches of the sums of raw gradients over the finite steps of the open window.

    A step's sketches are staged until `commit`, so that a skipped step changes nothing.
    """

    def __init__(self, shapes: Mapping[str, torch.Size], seed: int) -> None:
        self._shapes = shapes
        self._seed = seed
        self._rows = {layer: row for row, layer in enumerate(shapes)}
        self._hash: SketchHash | None = None
        self._sums = torch.zeros(len(shapes), SKETCH_SIZE, dtype=torch.float32, device="cpu")
        self._step = torch.zeros_like(self._sums)
        self._energies = torch.zeros(len(shapes), 3, dtype=torch.float32, device="cpu")
        self._step_energies = torch.zeros_like(self._energies)
        self.steps = 0
        """Number of finite steps in the window."""
        self.are_own = True
        """Whether the sums are of this worker alone, not taken over from others."""

    def add(self, layer: str, gradient: Tensor, *, scale: float = 1.0) -> None:
        """Stage `scale` times a layer's gradient of this step."""
        if self._hash is None:
            self._hash = SketchHash(self._shapes, self._seed, gradient.device)
            self._move_to(gradient.device)
        self._hash.sketch_(self._step[self._rows[layer]], gradient, scale=scale)

    def add_owed(self, layers: Sequence[str], owed: Tensor) -> None:
        """Stage the energy of gradients plus residuals before compression: B layers, (B, ...)."""
        self._add_energies(layers, owed, _OWED)

    def add_left(self, layers: Sequence[str], residuals: Tensor) -> None:
        """Stage the energy of the residuals after compression: B layers, (B, ...)."""
        self._add_energies(layers, residuals, _LEFT)

    def forget(self, layer: str) -> None:
        """Drop what was staged of a layer in this step."""
        self._step[self._rows[layer]] = 0.0

    def step_total(self) -> Tensor:
        """Return the sum of the step's sketches; it is finite if those of all layers have sums that
        are, and only if all gradients are.
        """
        return self._step.sum(1).sum(dtype=torch.float64)

    def broken_layers(self) -> list[str]:
        """Return the layers whose gradient in this step is not finite, or too large for fp32 sums;
        waits for the device.
        """
        finite = self._step.sum(1).isfinite().tolist()
        return [layer for layer, row in self._rows.items() if not finite[row]]

    def commit(self) -> None:
        """Add the staged step to the window."""
        self._step_energies[:, _SQUARES] = self._step.square().sum(1)
        self._sums.add_(self._step)
        self._energies.add_(self._step_energies)
        self.rollback()
        self.steps += 1

    def rollback(self) -> None:
        """Drop the staged step."""
        self._step.zero_()
        self._step_energies.zero_()

    def summary(self, device: torch.device) -> Tensor:
        """Return one row per layer, (layers, 1028), in the order of the shapes.

        A row is the sketch of the mean gradient over the steps, the mean square norm, the energies
        before and after compression, and the squared norm of the sketch, NaN if the sums are not
        this worker's own; zeros if nothing was added.
        """
        rows = torch.cat([self._sums, self._energies], dim=1).to(device).div_(max(1, self.steps))
        own_squares = rows[:, :SKETCH_SIZE].square().sum(1, keepdim=True)
        if not self.are_own:
            own_squares.fill_(math.nan)
        return torch.cat([rows, own_squares], dim=1)

    def clear(self) -> None:
        """Start a new window."""
        self._sums.zero_()
        self._energies.zero_()
        self.rollback()
        self.steps, self.are_own = 0, True

    def state_dict(self) -> dict[str, Any]:
        """Return the open window, with tensors on the CPU."""
        rows = torch.cat([self._sums, self._energies], dim=1).cpu()
        sums = {layer: rows[row].clone() for layer, row in self._rows.items()}
        return {
            "version": _STATE_VERSION,
            "steps": self.steps,
            "are_own": self.are_own,
            "sums": sums,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a saved window.

        A window of a release with other fields, signs or columns is replaced by an empty one.

        Raises:
            StateError: a sum belongs to an unknown layer, or is not a sketch.
        """
        steps = int(state["steps"])
        for layer, total in state["sums"].items():
            if layer not in self._rows or total.shape != _SAVED_SHAPE:
                raise StateError(
                    f"saved window: layer {layer!r} with {total.numel()} values is not in this"
                    " model"
                )
        self.clear()
        if state["version"] != _STATE_VERSION:
            return
        for layer, saved in state["sums"].items():
            row, total = self._rows[layer], saved.to(self._sums)
            self._sums[row] += total[:SKETCH_SIZE]
            self._energies[row] += total[SKETCH_SIZE:]
        self.steps, self.are_own = steps, state["are_own"]

    def _move_to(self, device: torch.device) -> None:
        self._sums, self._step = self._sums.to(device), self._step.to(device)
        self._energies = self._energies.to(device)
        self._step_energies = self._step_energies.to(device)

    def _add_energies(self, layers: Sequence[str], values: Tensor, column: int) -> None:
        norms = torch.linalg.vector_norm(values.flatten(1), dim=1)
        rows = [self._rows[layer] for layer in layers]
        places = torch.tensor(rows, dtype=torch.int64, device="cpu")
        places = copy_to_device(places, norms.device)
        self._step_energies[places, column] += norms.square().to(self._step_energies)


class SketchHash:
    """Random signs and columns of all layers' sketches, the same on every worker, with buffers.

    A layer is cut into tiles of 64,781 entries. Each segment of 512 entries of a tile has a sign,
    and one batched product, which reads the gradient once, sums all tiles into one. The sum is laid
    out as 64 rows of 1,024. Each of its entries has its own sign and a column that is drawn for its
    row; if all rows had the same columns, the active entries of a layer with few active input
    features would collide in every row. Entries after the last tile have their own signs.
    """

    def __init__(self, shapes: Mapping[str, torch.Size], seed: int, device: torch.device) -> None:
        tiles = max((_num_tiles(shape.numel()) for shape in shapes.values()), default=0)
        draw = seeded_generator(seed, "sketch")
        self._tile_signs_G1T = _random_signs((_ROWS * SKETCH_SIZE // _SEGMENT, 1, tiles), draw).to(
            device
        )
        self._signs_RS = _random_signs((_ROWS, SKETCH_SIZE), draw).to(device)
        self._signs_RS.view(-1)[_TILE:] = 0.0  # a tile's last row ends in entries of the next tile
        self._rest_signs_RS = _random_signs((_ROWS, SKETCH_SIZE), draw).to(device)
        columns_RS = torch.stack([_random_columns(draw) for _ in range(_ROWS)])
        self._columns_RS = columns_RS.to(device)
        self._signed_RS = torch.empty_like(self._signs_RS)
        self._moved_RS = torch.empty_like(self._signs_RS)

    def sketch_(self, total_S: Tensor, values: Tensor, *, scale: float = 1.0) -> None:
        """Add the sketch of `scale * values` to `total_S`, (1024,)."""
        flat = values.reshape(-1)
        if flat.numel() <= SKETCH_SIZE:
            total_S[: flat.numel()].add_(flat, alpha=scale)
            return
        if flat.dtype != torch.float32:
            flat = flat.to(torch.float32)
        tiles = _num_tiles(flat.numel())
        if tiles:
            self._sum_tiles(flat, tiles).mul_(self._signs_RS)
            flat = flat[tiles * _TILE :]
        rows, entries = divmod(flat.numel(), SKETCH_SIZE)
        if rows:
            self._sign_rest(flat[: rows * SKETCH_SIZE].view(rows, SKETCH_SIZE), add=tiles > 0)
        self._add_rows_(total_S, self._signed_RS[: _ROWS if tiles else rows], scale=scale)
        if entries:
            total_S[:entries].addcmul_(
                flat[-entries:], self._rest_signs_RS[rows, :entries], value=scale
            )

    def _sum_tiles(self, flat: Tensor, tiles: int) -> Tensor:
        """Return the sum of signed tiles as rows, (64, 1024)."""
        segments = len(self._tile_signs_G1T)
        segments_GTE = flat.as_strided(
            (segments, tiles, _SEGMENT), (_SEGMENT, _TILE, 1), flat.storage_offset()
        )
        sums_G1E = self._signed_RS.view(segments, 1, _SEGMENT)
        torch.bmm(self._tile_signs_G1T[..., :tiles], segments_GTE, out=sums_G1E)
        return self._signed_RS

    def _sign_rest(self, whole_RS: Tensor, *, add: bool) -> None:
        """Write the whole rows after the last tile with their signs, or add them to the tiles'."""
        signs_RS, signed_RS = (
            part[: len(whole_RS)] for part in (self._rest_signs_RS, self._signed_RS)
        )
        if add:
            signed_RS.addcmul_(whole_RS, signs_RS)
        else:
            torch.mul(whole_RS, signs_RS, out=signed_RS)

    def _add_rows_(self, total_S: Tensor, signed_RS: Tensor, *, scale: float) -> None:
        """Add rows of entries to the sketch; each row adds one entry to every column."""
        rows = len(signed_RS)
        moved_RS = torch.gather(signed_RS, 1, self._columns_RS[:rows], out=self._moved_RS[:rows])
        total_S.add_(moved_RS.sum(0), alpha=scale)


def _num_tiles(entries: int) -> int:
    """Return how many tiles of a layer can be read as 64 whole rows without leaving the layer."""
    return max(0, (entries - _ROWS * SKETCH_SIZE) // _TILE + 1)


def estimate_norms(layers: Iterable[str], summary: Tensor) -> dict[str, float]:
    """Return the norm of each layer's mean gradient, given the summary averaged over workers."""
    lengths = torch.linalg.vector_norm(summary[:, :SKETCH_SIZE], dim=1).tolist()
    return dict(zip(layers, lengths, strict=True))


def root_mean_squares(layers: Iterable[str], summary: Tensor) -> dict[str, float]:
    """Return the root mean square of each layer's gradient norms, given the averaged summary."""
    return dict(zip(layers, summary[:, SKETCH_SIZE].sqrt().tolist(), strict=True))


def estimate_agreement(summary: Tensor, world_size: int) -> float | None:
    """Return how far the workers' mean gradients over a window agree, given the averaged summary;
    None for one worker, zero gradients, or a worker whose sums are not its own.

    With A = |mean over the workers|^2 / mean of |one worker's|^2, it is (A - 1/W) / (1 - 1/W): 1 if
    all are equal, 0 in expectation if they are independent with mean zero, as A is 1/W then. It is
    the share of signal in a worker's window, as the gradient noise scale is for a step
    (arXiv:1812.06162).
    """
    common = float(summary[:, :SKETCH_SIZE].square().sum(dtype=torch.float64))
    own = float(summary[:, -1].sum(dtype=torch.float64))
    if world_size == 1 or not (own > 0.0 and math.isfinite(own)):
        return None
    return (common / own - 1.0 / world_size) / (1.0 - 1.0 / world_size)


def sent_shares(layers: Iterable[str], summary: Tensor) -> dict[str, float]:
    """Return the share of a layer's energy that compression sent, from 0 to 1, for each layer for
    which it was measured, given the averaged summary.

    The share is 1 - |residual after|^2 / |gradient + residual before|^2, summed over the measured
    steps and the workers. Where the residual is orthogonal to what was sent, as for top-k, it is
    the compression gain of GraVAC (arXiv:2305.12201).
    """
    energies = summary[:, SKETCH_SIZE : SKETCH_SIZE + 3].tolist()
    return {
        layer: min(1.0, max(0.0, 1.0 - row[_LEFT] / row[_OWED]))
        for layer, row in zip(layers, energies, strict=True)
        if row[_OWED] > 0.0
    }


def window_fields(
    layers: Sequence[str], summary: Tensor, *, agreement: float | None
) -> dict[str, Any]:
    """Return what a window measured, as fields of a `Report`, given the averaged summary and the
    agreement.
    """
    return {
        "agreement": agreement,
        "statistic_by_layer": estimate_norms(layers, summary),
        "rms_by_layer": root_mean_squares(layers, summary),
        "sent_share_by_layer": sent_shares(layers, summary),
    }


def seeded_generator(seed: int, purpose: str) -> torch.Generator:
    """Return a CPU generator with the same seed on every worker."""
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))


def _random_signs(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    return (
        torch.randint(0, 2, shape, generator=draw, dtype=torch.int8, device="cpu")
        .mul_(2)
        .sub_(1)
        .float()
    )


def _random_columns(draw: torch.Generator) -> Tensor:
    return torch.randperm(SKETCH_SIZE, generator=draw, dtype=torch.int64, device="cpu")
