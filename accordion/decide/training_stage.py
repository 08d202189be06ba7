"""How far training has come, by the fall of the learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Report

_MOST = 1e9
"""Fall that counts as one to zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStage:
    """Stage of a run, as far as reports tell it."""

    peak: float = 0.0
    """Highest learning rate so far that no override had set."""
    fall: float = 1.0
    """Ratio of the peak to the rate from now on, at least 1."""

    def after(self, report: Report, *, is_overridden: bool = False) -> TrainingStage:
        """Return the stage after a report; an override that set its rates raises no peak."""
        rate = report.next_lr if report.epoch_end else report.lr
        peak = self.peak if is_overridden else max(self.peak, report.lr, rate)
        # A rate of 0 from the beginning is unknown, or that of a warm-up.
        fall = peak / rate if rate > 0.0 else _MOST if peak > 0.0 else 1.0
        return TrainingStage(peak=peak, fall=max(1.0, min(fall, _MOST)))

    def round_length(self, local: LocalSteps | None, step: int) -> int:
        """Return the local steps of a round from `step` on; 1 without local steps."""
        return 1 if local is None else local.length(step=step, fall=self.fall)
