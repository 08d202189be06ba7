"""Laws of one job's history, which the tests of the service and `make chaos` share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from accordion_service.store.tables.models import EpochRow, EventRow

EpochKey = tuple[int, int, int]
"""Attempt, generation and number of an epoch that was trained."""


def list_epochs_told(events: Iterable[EventRow]) -> list[EpochKey]:
    """List the epochs that a job's events tell of, in their order."""
    told = (event.data for event in events if event.type == "epoch")
    return [(data["attempt"], data["generation"], data["epoch"]) for data in told]


def find_repeated_epochs(events: Iterable[EventRow]) -> list[EpochKey]:
    """Find the epochs of which a job's events tell more than once."""
    return [key for key, count in Counter(list_epochs_told(events)).items() if count > 1]


def came_in_last_epoch(ordered_at: float, epochs: Iterable[EpochRow]) -> bool:
    """Return whether no epoch began after an order: then only the running one ended after it.

    The row of an epoch has the time at which its workers finished it; its event has a later one
    where the service stored another event in between.
    """
    return sum(row.time > ordered_at for row in epochs) <= 1
