"""Signals that a worker raises, until all workers have seen them."""

from __future__ import annotations

from accordion.compress.step_signals import Signal


class Requests:
    """Signals of this worker for the next exchange; any thread may add one."""

    def __init__(self) -> None:
        self._waiting: set[Signal] = set()
        self._in_flight: frozenset[Signal] = frozenset()

    def add(self, signal: Signal) -> None:
        """Raise a signal."""
        self._waiting.add(signal)

    def take(self) -> frozenset[Signal]:
        """Return what this worker raises in an exchange."""
        self._in_flight = frozenset(self._waiting)
        return self._in_flight

    def drop_seen(self) -> None:
        """Forget what was raised in the exchange that ended."""
        self._waiting -= self._in_flight
