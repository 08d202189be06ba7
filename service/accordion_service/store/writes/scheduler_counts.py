"""Counts of the scheduler: it serves no HTTP, so they are stored with its lease, and every api
process exports the same values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Literal

Counts = dict[str, dict[str, float]]
"""Numbers by name and label."""
TURN_SECONDS, RECORD_DELAYS = "turn_seconds", "record_delays"
"""Names of histograms: a label for each bucket, not cumulative, and `SUM`."""
ERRORS, DATABASE_ERRORS, WEBHOOK_ATTEMPTS = "errors", "database_errors", "webhook_attempts"
"""Names of counts by scope, kind and outcome."""
AUTOSCALER_REQUESTS = "autoscaler_requests"
"""Name of the count of requests to the autoscaler, by outcome."""
SUM = "sum"
BUCKETS: Mapping[str, tuple[float, ...]] = {
    TURN_SECONDS: (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    RECORD_DELAYS: (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0),
}
"""Upper limits of the buckets of each histogram, in seconds, without the last one, +Inf. If a later
version moves a limit, the counts of the old bucket are no longer shown.
"""
ErrorScope = Literal["turn", "job"]
"""What an unexpected error ended: a whole turn, or what it would have done for one job."""


class SchedulerCounts:
    """Counts of one scheduler process, which its threads share, and how much of them is stored,
    which only its lease uses.
    """

    def __init__(self, database_errors: Callable[[], Mapping[str, float]] = dict) -> None:
        self._database_errors = database_errors
        self._lock = Lock()
        self._counted: Counts = {}
        self._stored: Counts = {}

    def observe_turn(self, seconds: float) -> None:
        """Count a turn, also one that failed."""
        self._observe(TURN_SECONDS, [seconds])

    def observe_delays(self, seconds: Iterable[float]) -> None:
        """Count records that are in the database now, by their age."""
        # A worker's clock may be ahead.
        self._observe(RECORD_DELAYS, [max(0.0, delay) for delay in seconds])

    def count_error(self, scope: ErrorScope) -> None:
        """Count an unexpected error."""
        self._add({ERRORS: {scope: 1.0}})

    def count_webhook_attempt(self, outcome: str) -> None:
        """Count an attempt to deliver a message, by the state in which it left the message."""
        self._add({WEBHOOK_ATTEMPTS: {outcome: 1.0}})

    def count_autoscaler_requests(self, *, sent: int, failed: int) -> None:
        """Count requests to the autoscaler, and failed exchanges with it."""
        if sent or failed:
            self._add({AUTOSCALER_REQUESTS: {"sent": float(sent), "failed": float(failed)}})

    def list_all(self) -> Counts:
        """Return what was counted so far."""
        with self._lock:
            return {**self._counted, DATABASE_ERRORS: dict(self._database_errors())}

    def subtract_stored(self, counts: Counts) -> Counts:
        """Return how much of these counts is not stored; never negative, so that sums only grow."""
        return add_counts(counts, self._stored, sign=-1.0)

    def mark_stored(self, counts: Counts) -> None:
        """Note that all of these counts are stored."""
        self._stored = counts

    def _observe(self, name: str, values: Iterable[float]) -> None:
        counted: dict[str, float] = {}
        for value in values:
            label = _bucket(name, value)
            counted[label] = counted.get(label, 0.0) + 1.0
            counted[SUM] = counted.get(SUM, 0.0) + value
        if counted:
            self._add({name: counted})

    def _add(self, counts: Counts) -> None:
        with self._lock:
            self._counted = add_counts(self._counted, counts)


def add_counts(counts: Counts, others: Counts, *, sign: float = 1.0) -> Counts:
    """Return the sum of counts, or with the sign -1 their difference."""
    return {
        name: {
            label: counts.get(name, {}).get(label, 0.0)
            + sign * others.get(name, {}).get(label, 0.0)
            for label in {**counts.get(name, {}), **others.get(name, {})}
        }
        for name in {**counts, **others}
    }


def bucket_labels(name: str) -> list[str]:
    """Return the labels of all buckets of a histogram, in order."""
    return [*(f"{limit:g}" for limit in BUCKETS[name]), "+Inf"]


def _bucket(name: str, value: float) -> str:
    return bucket_labels(name)[bisect_left(BUCKETS[name], value)]
