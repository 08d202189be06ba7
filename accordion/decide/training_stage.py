"""How far training has come: the fall of the learning rate, and the end of the workers'
agreement.
"""

from __future__ import annotations

from dataclasses import dataclass

from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Report

_MOST = 1e9
"""Fall that counts as one to zero."""
QUIET_BELOW = 0.1
"""Agreement below which a window has little but noise."""
QUIET_WINDOWS = 2
"""Windows in a row that must be quiet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStage:
    """Stage of a run, as far as reports tell it."""

    peak: float = 0.0
    """Highest learning rate so far."""
    fall: float = 1.0
    """Ratio of the peak to the rate from now on."""
    quiet_windows: int = 0
    """Last windows in a row whose agreement was below `QUIET_BELOW`."""
    quiet_step: int | None = None
    """Step at which there were `QUIET_WINDOWS` of them for the first time."""

    def after(self, report: Report) -> TrainingStage:
        """Return the stage after a report."""
        rate = report.next_lr if report.epoch_end else report.lr
        peak = max(self.peak, report.lr, rate)
        windows, step = self.quiet_windows, self.quiet_step
        if report.agreement is not None and report.local_steps == 1:
            windows = windows + 1 if report.agreement < QUIET_BELOW else 0
        if step is None and windows >= QUIET_WINDOWS:
            step = report.step
        return TrainingStage(
            peak=peak,
            # A rate of 0 from the beginning is unknown, or that of a warm-up.
            fall=min(peak / rate, _MOST) if rate > 0.0 else _MOST if peak > 0.0 else 1.0,
            quiet_windows=windows,
            quiet_step=step,
        )

    def round_length(self, local: LocalSteps | None, step: int) -> int:
        """Return the local steps of a round from `step` on; 1 without local steps."""
        if local is None:
            return 1
        return local.length(step=step, fall=self.fall, quiet_step=self.quiet_step)
