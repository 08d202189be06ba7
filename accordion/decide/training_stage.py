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
    """Highest learning rate so far."""
    fall: float = 1.0
    """Ratio of the peak to the rate from now on."""

    def after(self, report: Report) -> TrainingStage:
        """Return the stage after a report."""
        rate = report.next_lr if report.epoch_end else report.lr
        peak = max(self.peak, report.lr, rate)
        return TrainingStage(
            peak=peak,
            # A rate of 0 from the beginning is unknown, or that of a warm-up.
            fall=min(peak / rate, _MOST) if rate > 0.0 else _MOST if peak > 0.0 else 1.0,
        )

    def round_length(self, local: LocalSteps | None, step: int) -> int:
        """Return the local steps of a round from `step` on; 1 without local steps."""
        return 1 if local is None else local.length(step=step, fall=self.fall)
