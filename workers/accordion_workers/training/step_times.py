"""Mean seconds of a step by phase, over the newest steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

WINDOW_S = 10.0
"""Seconds over which the phases of steps are averaged."""
MARK_EVERY_S = 0.25
"""Shortest time between two moments that are kept: a window of fast steps keeps about 40."""
BETWEEN_STEPS = ("evaluate", "checkpoint", "decide")
"""Phases between steps, which may be an epoch apart: they are averaged over the last whole epoch
and the open one.
"""


class _Mark(NamedTuple):
    time_s: float
    step: int
    seconds: Mapping[str, float]


class StepTimes:
    """Averages the seconds of one rank's phases over its newest steps."""

    def __init__(self) -> None:
        self._recent: deque[_Mark] = deque()
        """Moments of the last `WINDOW_S`, and one before."""
        self._epochs: deque[_Mark] = deque(maxlen=2)
        """Starts of the last whole epoch and of the open one."""

    def start_epoch(self, time_s: float, step: int, seconds: Mapping[str, float]) -> None:
        """Mark the start of an epoch, after `step` steps, with the seconds by phase so far."""
        self._epochs.append(_Mark(time_s, step, dict(seconds)))

    def observe_step(self, time_s: float, step: int, seconds: Mapping[str, float]) -> bool:
        """Mark the end of a step, with the seconds by phase so far; return whether the means are
        new, which they are at most every `MARK_EVERY_S`.
        """
        if not self._epochs:
            self.start_epoch(time_s, step, seconds)
        if self._recent and time_s - self._recent[-1].time_s < MARK_EVERY_S:
            return False
        self._recent.append(_Mark(time_s, step, dict(seconds)))
        while len(self._recent) > 2 and time_s - self._recent[1].time_s >= WINDOW_S:
            self._recent.popleft()
        return True

    def means(self) -> dict[str, float]:
        """Return the mean seconds per step by phase; empty before two steps were marked."""
        if len(self._recent) < 2 or self._recent[-1].step <= self._recent[0].step:
            return {}
        recent = _mean_since(self._recent[0], self._recent[-1])
        # At the end of an epoch, its evaluation came after its last step.
        newest = max(self._recent[-1], self._epochs[-1], key=lambda mark: mark.time_s)
        if newest.step <= self._epochs[0].step:
            return recent
        epochs = _mean_since(self._epochs[0], newest)
        return {
            phase: epochs[phase] if phase in BETWEEN_STEPS else seconds
            for phase, seconds in recent.items()
        }


def _mean_since(before: _Mark, now: _Mark) -> dict[str, float]:
    steps = now.step - before.step
    return {
        phase: max(0.0, seconds - before.seconds.get(phase, 0.0)) / steps
        for phase, seconds in now.seconds.items()
    }
