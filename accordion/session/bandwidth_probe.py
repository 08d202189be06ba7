"""Sizes of the all-reduces that show a link's bandwidth, and whether they are worth their time;
stdlib only.

Rank 0 asks `begin` and `observe` for the size of the next all-reduce, 0 for none, and all workers
make it. On a busy host a single all-reduce may wait for a processor for longer than its bytes take,
so the fastest of a few counts, a larger size must take longer, and the median of the last three
probes is used.
"""

from __future__ import annotations

from collections import deque

from accordion.base.link_model import CollectiveTiming

MIN_BYTES, MAX_BYTES = 1 << 16, 1 << 24
TARGET_S = 0.01
"""Duration that shows the bandwidth: a shaper lets about a millisecond pass without delay."""
GROWTH_FACTOR = 2.0
"""Smallest ratio of that duration to that of a quarter of the bytes. A smaller one shows the wait
for a processor, not the bytes.
"""
REPEATS = 3
MAX_SECONDS = 0.3
"""Seconds after which a probe is not repeated."""
_SHORTEST_S = 1e-6
"""Lower limit of the time that bytes take."""
MAX_SHARE = 0.02
"""Fraction of what steps waited for exchanges, the most that another choice could save, that probes
may take.
"""
MAX_SKIPPED = 8
"""Probes that are left out in a row because too little could be saved."""


class BandwidthProbe:
    """Probes of one link. `max_bytes`: bytes of all gradients; more are never sent at once."""

    def __init__(self, max_bytes: int) -> None:
        self.timing: CollectiveTiming | None = None
        """Bytes, and the seconds that they took in addition to those of a message without any, in
        the probe of the last three with the median bandwidth, of two the faster; None before the
        first one.
        """
        self._max_bytes = max(MIN_BYTES, min(MAX_BYTES, max_bytes))
        self._size = MIN_BYTES
        self._seconds: list[float] = []
        """All-reduces of this size so far."""
        self._latency_s = 0.0
        self._smaller = (0, 0.0)
        """Bytes and fewest seconds of the size before in this probe; at first, no bytes."""
        self._cost_s = 0.0
        """Seconds of the running or last probe."""
        self._waited_s = 0.0
        """Seconds that steps had waited for exchanges at the last probe."""
        self._skipped = 0
        self._newest: deque[CollectiveTiming] = deque(maxlen=3)

    def begin(self, waited_s: float, latency_s: float) -> int:
        """Return the bytes of the first all-reduce; 0 if a probe costs more than it could save.

        `waited_s` is for how long steps have waited for exchanges so far, and `latency_s` what an
        all-reduce of a few bytes takes.
        """
        affordable_s = MAX_SHARE * (waited_s - self._waited_s)
        if self.timing is not None and affordable_s < self._cost_s and self._skipped < MAX_SKIPPED:
            self._skipped += 1
            return 0
        self._skipped, self._waited_s, self._cost_s = 0, waited_s, 0.0
        self._latency_s, self._seconds, self._smaller = latency_s, [], (0, latency_s)
        return self._size

    def observe(self, seconds: float) -> int:
        """Observe an all-reduce of the size given last; return the next size, 0 for none."""
        self._cost_s += seconds
        self._seconds.append(seconds)
        best_s = min(self._seconds)
        is_over, is_largest = self._cost_s >= MAX_SECONDS, self._size == self._max_bytes
        is_last = best_s >= TARGET_S or is_largest
        if is_last and len(self._seconds) < REPEATS and not is_over:
            return self._size
        is_shown = best_s >= max(TARGET_S, GROWTH_FACTOR * self._smaller[1])
        if is_largest or is_over or (is_shown and self._smaller[0]):
            # Bytes that made no clear difference took at most the whole time.
            self._finish(best_s, *(self._smaller if is_shown else (0, self._latency_s)))
            return 0
        self._smaller, self._seconds = (self._size, best_s), []
        self._size = min(4 * self._size, self._max_bytes)
        return self._size

    def _finish(self, best_s: float, smaller: int, smaller_s: float) -> None:
        done = CollectiveTiming(
            kind="all-reduce",
            name="probe",
            payload=self._size - smaller,
            seconds=max(best_s - smaller_s, _SHORTEST_S),
        )
        self._newest.append(done)
        ranked = sorted(self._newest, key=lambda timing: timing.payload / timing.seconds)
        self.timing = ranked[len(ranked) // 2]
        self._size = max(MIN_BYTES, self._size // 4)


__all__ = ["BandwidthProbe"]
