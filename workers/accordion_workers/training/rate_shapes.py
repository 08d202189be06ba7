"""Shapes of the learning rate over a run, as shares of `optimizer.lr`; pure.

A position is an epoch, counted from 0, and the part of it that is done, from 0 to 1. A run has
`epochs` epochs; after its end a shape keeps its last value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from accordion_workers.spec.training import LrDecaySpec, LrShape, TrainingSpec

FIRST_SHARE = 1.0 / 25.0
"""Share with which one cycle starts, as in PyTorch's OneCycleLR."""


class RateShape(Protocol):
    """Share of the peak by position."""

    def share(self, epoch: int, done: float) -> float:
        """Return the share at a position."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Drops by `factor` at the start of each epoch of `at`; without any, a constant rate."""

    at: tuple[int, ...] = ()
    factor: float = 1.0

    def share(self, epoch: int, done: float) -> float:  # noqa: ARG002
        """Implements `RateShape`."""
        return self.factor ** sum(at <= epoch for at in self.at)


@dataclass(frozen=True, slots=True)
class Cosine:
    """Falls to `floor` along half a cosine (arXiv:1608.03983, without restarts)."""

    epochs: int
    floor: float = 0.0

    def share(self, epoch: int, done: float) -> float:
        """Implements `RateShape`."""
        return _half_cosine(1.0, self.floor, _progress(epoch, done, self.epochs))


@dataclass(frozen=True, slots=True)
class WarmupStableDecay:
    """Stays at the peak, and falls to `floor` in a straight line in the last `part` of the run
    (arXiv:2405.18392); 1 is a linear decay.
    """

    epochs: int
    part: float
    floor: float = 0.0

    def share(self, epoch: int, done: float) -> float:
        """Implements `RateShape`."""
        left = (1.0 - _progress(epoch, done, self.epochs)) / self.part
        return self.floor + (1.0 - self.floor) * min(1.0, left)


@dataclass(frozen=True, slots=True)
class OneCycle:
    """Rises from 1/25 to the peak in the first `rise` of the run, and falls to `floor`, both along
    half a cosine (arXiv:1708.07120).
    """

    epochs: int
    rise: float
    floor: float = 0.0

    def share(self, epoch: int, done: float) -> float:
        """Implements `RateShape`."""
        progress = _progress(epoch, done, self.epochs)
        if progress < self.rise:
            return _half_cosine(FIRST_SHARE, 1.0, progress / self.rise)
        return _half_cosine(1.0, self.floor, (progress - self.rise) / (1.0 - self.rise))


@dataclass(frozen=True, slots=True)
class Table:
    """Runs in straight lines between points of an epoch and a share."""

    points: tuple[tuple[float, float], ...]

    def share(self, epoch: int, done: float) -> float:
        """Implements `RateShape`."""
        now = epoch + done
        if now <= self.points[0][0]:
            return self.points[0][1]
        for (begin, first), (end, last) in pairwise(self.points):
            if now <= end:
                return first + (last - first) * (now - begin) / (end - begin)
        return self.points[-1][1]


SHAPES: Mapping[LrShape, Callable[[LrDecaySpec, int], RateShape]] = {
    "steps": lambda decay, _: Steps(decay.at, decay.factor),
    "cosine": lambda decay, epochs: Cosine(epochs, decay.floor),
    "wsd": lambda decay, epochs: WarmupStableDecay(epochs, decay.part, decay.floor),
    "one_cycle": lambda decay, epochs: OneCycle(epochs, decay.rise, decay.floor),
    "table": lambda decay, _: Table(decay.points),
}
"""How each shape of a job file is made, given its settings and the epochs of the job."""


def build_shape(training: TrainingSpec) -> RateShape:
    """Return the shape that a job file names."""
    return SHAPES[training.lr_decay.shape](training.lr_decay, training.epochs)


def _progress(epoch: int, done: float, epochs: int) -> float:
    return min(1.0, (epoch + done) / epochs)


def _half_cosine(first: float, last: float, progress: float) -> float:
    return last + (first - last) * 0.5 * (1.0 + math.cos(math.pi * progress))
