"""The wall clock, once it and the monotonic clock have advanced alike for a while."""

from __future__ import annotations

from collections.abc import Callable

AGREED_S = 600.0
"""Seconds for which both clocks must have advanced alike: longer than a machine that starts with a
wrong time usually needs to set its clock.
"""
_TOLERANCE_S = 10.0
"""Difference that is no jump: a clock that is adjusted slowly gains less in hours."""


class TrustedClock:
    """Tells the time for what cannot be undone. Only one thread may call it."""

    def __init__(self, *, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._agree_since = monotonic()
        self._offset = clock() - self._agree_since
        """Wall clock minus monotonic clock when they began to agree."""

    def read(self, kept_s: float = AGREED_S) -> float | None:
        """Return the seconds since 1970; None until both clocks have agreed for `AGREED_S` seconds,
        or for `kept_s` seconds if these are fewer: what is kept that long is old by then.
        """
        now, monotonic = self._clock(), self._monotonic()
        if abs(now - monotonic - self._offset) > _TOLERANCE_S:
            self._offset, self._agree_since = now - monotonic, monotonic
        return now if monotonic - self._agree_since >= min(AGREED_S, kept_s) else None
