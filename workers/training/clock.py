"""Time as an argument, and the seconds of a run by phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

PHASES = ("compute", "communicate", "optimize", "evaluate", "checkpoint", "decide", "wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The clock that the loop uses; tests pass their own."""

    elapsed: Callable[[], float] = time.perf_counter
    """Seconds since some moment, never going back."""
    now: Callable[[], float] = time.time
    """Seconds since 1970."""
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True, kw_only=True)
class Phases:
    """Seconds of this rank by phase."""

    clock: Clock
    communicated: Callable[[], float]
    """Seconds that the session has waited for collectives; they are taken out of the phase in which
    they passed.
    """
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    """Seconds by phase since the job began."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Everything inside the block is this phase or `communicate`."""
        start, waited = self.clock.elapsed(), self.communicated()
        try:
            yield
        finally:
            waited = self.communicated() - waited
            self.seconds["communicate"] += waited
            self.seconds[phase] += self.clock.elapsed() - start - waited
