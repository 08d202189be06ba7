"""How far the learning rate stands below its peak, by which rounds of local steps become longer."""

from __future__ import annotations

from dataclasses import dataclass

from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Report

_MOST = 1e9
"""Fall that counts as one to zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFall:
    """Fall of the learning rate as far as it was reported."""

    peak: float = 0.0
    """Highest rate."""
    fall: float = 1.0
    """Ratio of the peak to the rate now."""

    def after(self, report: Report) -> RateFall:
        """Return the fall after a report."""
        rate = report.next_lr if report.epoch_end else report.lr
        peak = max(self.peak, report.lr, rate)
        return RateFall(peak=peak, fall=min(peak / rate, _MOST) if rate > 0.0 else _MOST)

    def round_length(self, local: LocalSteps | None, step: int) -> int:
        """Return the local steps of a round from `step` on; 1 without local steps."""
        return 1 if local is None else local.length(step=step, fall=self.fall)
