"""The learning rate as a pure function of the place in the run."""

from __future__ import annotations

from dataclasses import dataclass

from workers.spec import TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Step decay, with a linear warm-up over the first epochs."""

    lr: float
    decay_at: tuple[int, ...] = ()
    """Epochs at whose start the rate is multiplied by `decay_factor`."""
    decay_factor: float = 1.0
    warmup_epochs: int = 0

    def epoch_rate(self, epoch: int) -> float:
        """The schedule's own rate, before warm-up: what the detector compares."""
        drops = sum(at <= epoch for at in self.decay_at)
        return self.lr * self.decay_factor**drops

    def step_rate(self, epoch: int, step: int, *, steps_per_epoch: int) -> float:
        """The rate of one step; `step` counts from 0 within the epoch."""
        warmup_steps = self.warmup_epochs * steps_per_epoch
        done = epoch * steps_per_epoch + step + 1
        warmth = min(1.0, done / warmup_steps) if warmup_steps else 1.0
        return self.epoch_rate(epoch) * warmth


def schedule_of(training: TrainingSpec) -> Schedule:
    """The schedule that a spec asks for."""
    return Schedule(
        lr=training.optimizer.lr,
        decay_at=training.lr_decay.at,
        decay_factor=training.lr_decay.factor,
        warmup_epochs=training.warmup.epochs,
    )
