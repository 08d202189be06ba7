"""Measured times of rounds since the last decision, on one worker; stdlib only.

A step in which gradients are exchanged is a round of one step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

KEPT = 200
"""Number of the last rounds that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTime:
    """Times of one round, or medians over several."""

    exchange_s: float
    """Seconds of the exchange that ends a round of local steps; of an exchange beside a backward
    pass, those that the pass did not hide.
    """
    step_s: float
    """Seconds of a step, without them."""


class RoundTimes:
    """Times rounds. A round of local steps that ends after its first one is left out, because it
    tells nothing of a step's time.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._boundaries_s: list[float] = []
        """When the steps of the running round passed their boundary."""
        self._last: tuple[float, float] | None = None
        """When the last step with an exchange passed its boundary, and `waited_s` then."""
        self._rounds: deque[RoundTime] = deque(maxlen=KEPT)

    def pass_exchanged_step(self, waited_s: float) -> None:
        """Pass the boundary of a step with an exchange; until then, training waited for `waited_s`
        since the start.
        """
        now_s, last = self._clock(), self._last
        self._last = now_s, waited_s
        if last is not None:
            exchange_s = waited_s - last[1]
            self._rounds.append(
                RoundTime(exchange_s=exchange_s, step_s=now_s - last[0] - exchange_s)
            )

    def pass_local_step(self) -> None:
        """Pass the boundary of a local step."""
        self._boundaries_s.append(self._clock())

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Time the exchange that ends the round."""
        boundaries_s, self._boundaries_s = self._boundaries_s, []
        started_s = self._clock()
        yield
        if (num_steps := len(boundaries_s) - 1) > 0:
            self._rounds.append(
                RoundTime(
                    exchange_s=self._clock() - started_s,
                    step_s=(boundaries_s[-1] - boundaries_s[0]) / num_steps,
                )
            )

    def clear(self) -> None:
        """Forget the rounds so far."""
        self._rounds.clear()
        self._boundaries_s.clear()
        self._last = None

    def medians(self) -> RoundTime | None:
        """Return the medians over the rounds so far; None without any."""
        rounds = self._rounds
        if not rounds:
            return None
        return RoundTime(
            exchange_s=median(one.exchange_s for one in rounds),
            step_s=median(one.step_s for one in rounds),
        )
