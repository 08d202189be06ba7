"""Time as an argument, and the seconds of a run by phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

PHASES = (
    "load",
    "compute",
    "encode",
    "communicate",
    "optimize",
    "evaluate",
    "checkpoint",
    "decide",
    "wait",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The clock that the loop uses; tests pass their own."""

    elapsed: Callable[[], float] = time.perf_counter
    """Seconds since some moment, never going back."""
    now: Callable[[], float] = time.time
    """Seconds since 1970."""
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """Moment from which a phase is counted, and the totals at that moment."""

    time_s: float
    waited_s: float
    encoded_s: float
    seconds: dict[str, float]


@dataclass(slots=True, weakref_slot=True, kw_only=True)
class Phases:
    """Seconds of this rank by phase.

    Waiting for exchanges is taken out of the phase in which it passed: encoding and decoding count
    as `encode`, the rest of it as `communicate`.
    """

    clock: Clock
    exchange_times: Callable[[], tuple[float, float]]
    """Return the seconds that the session has waited for exchanges, and the part of them in which
    gradients were encoded and decoded.
    """
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    """Seconds by phase since the job began."""
    _lap: _Mark | None = None
    _is_loading: bool = False
    _is_loader_known: bool = False
    """Whether waits for the loader are counted, so that nothing else is `load`."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count the time inside the block as this phase, except that of blocks within it."""
        mark = self._mark()
        try:
            yield
        finally:
            self._count_since(mark, phase)

    def start_step(self) -> None:
        """Start a lap; until the loader is known, it is `load` until `end_load` is called."""
        self._lap, self._is_loading = self._mark(), True

    @contextmanager
    def wait_for_loader(self) -> Iterator[None]:
        """Count the time inside the block as `load`; outside of such blocks, nothing is `load` from
        now on.
        """
        self._is_loader_known = True
        with self("load"):
            yield

    def start_load(self) -> None:
        """Count the time since the step started as `compute`, and that until `end_load` as `load`,
        unless the loader is known.
        """
        if not self._is_loader_known and self._is_loading:
            self.count_lap("compute")
            self.start_step()

    def end_load(self) -> None:
        """Count the time since the step, or loading, started as `load`, unless the loader is known;
        later calls in a step do nothing.
        """
        if self._is_loading and not self._is_loader_known:
            self.count_lap("load")

    def count_lap(self, phase: str) -> None:
        """Count the time since the last call, or since the step started, as this phase."""
        if self._lap is not None:
            self._count_since(self._lap, phase)
        self._lap, self._is_loading = self._mark(), False

    def _mark(self) -> _Mark:
        waited_s, encoded_s = self.exchange_times()
        return _Mark(
            time_s=self.clock.elapsed(),
            waited_s=waited_s,
            encoded_s=encoded_s,
            seconds=dict(self.seconds),
        )

    def _count_since(self, mark: _Mark, phase: str) -> None:
        """Count what has passed since the mark and was not counted since."""
        now = self._mark()
        counted = {name: now.seconds[name] - mark.seconds[name] for name in now.seconds}
        encode_s = now.encoded_s - mark.encoded_s
        communicate_s = now.waited_s - mark.waited_s - encode_s - counted["communicate"]
        encode_s -= counted["encode"]
        self.seconds["encode"] += encode_s
        self.seconds["communicate"] += communicate_s
        own_s = now.time_s - mark.time_s - sum(counted.values()) - encode_s - communicate_s
        self.seconds[phase] += own_s
