"""The learning rate as a pure function of the place in the run and of the global batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from accordion_workers.spec.job import JobSpec
from accordion_workers.spec.training import TrainingSpec
from accordion_workers.training.rate_shapes import RateShape, Steps, build_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A shape of the learning rate, with a linear warm-up over the first epochs. Positions are in
    epochs, whose number of samples the batch size does not change.
    """

    lr: float
    shape: RateShape = field(default_factory=Steps)
    warmup_epochs: int = 0

    def epoch_rate(self, epoch: int) -> float:
        """Return the schedule's own rate at the start of an epoch, before warm-up, which the
        detector compares.
        """
        return self.lr * self.shape.share(epoch, 0.0)

    def step_rate(self, epoch: int, done: float) -> float:
        """Return the rate of a step that ends when this part of the epoch, in (0, 1], is done."""
        warmth = min(1.0, (epoch + done) / self.warmup_epochs) if self.warmup_epochs else 1.0
        return self.lr * self.shape.share(epoch, done) * warmth


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChange:
    """Last change of the global batch, as far as the learning rate depends on it; part of a
    checkpoint.
    """

    size: int
    """Samples per step since the change."""
    step: int = 0
    """First step of that size, counted from the start of the job."""
    factor: float = 1.0
    """Factor of the learning rate in the step before, from which the warm-up starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScaling:
    """Factor of the schedule's rate by global batch (arXiv:1706.02677, section 2)."""

    low: int
    """Global batch that the schedule's rate is meant for."""
    rule: Literal["linear", "sqrt", "none"] = "none"
    warmup_steps: int = 0

    def after(self, change: BatchChange, *, size: int, step: int) -> BatchChange:
        """Return the change in force in a step of this batch size."""
        if size == change.size:
            return change
        return BatchChange(size=size, step=step, factor=self.factor(change, step - 1))

    def factor(self, change: BatchChange, step: int) -> float:
        """Return the factor of one step: it rises in equal steps over the warm-up and falls at
        once.
        """
        target = self._full_factor(change.size)
        done = step - change.step + 1
        if target <= change.factor or done >= self.warmup_steps:
            return target
        return change.factor + (target - change.factor) * done / self.warmup_steps

    def _full_factor(self, size: int) -> float:
        match self.rule:
            case "linear":
                return size / self.low
            case "sqrt":
                return math.sqrt(size / self.low)
            case "none":
                return 1.0


def build_schedule(training: TrainingSpec) -> Schedule:
    """Build the schedule of the rate at the low batch size."""
    return Schedule(
        lr=training.optimizer.lr,
        shape=build_shape(training),
        warmup_epochs=training.warmup.epochs,
    )


def build_scaling(spec: JobSpec) -> BatchScaling:
    """Build the rule by which the rate follows the batch size."""
    low, batch = spec.training.global_batch, spec.batch
    if batch is None:
        return BatchScaling(low=low)
    return BatchScaling(low=low, rule=batch.lr_scaling, warmup_steps=batch.warmup_steps)
