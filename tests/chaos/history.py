"""What the database holds of one job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from accordion_service.store.engine.database import Database
from accordion_service.store.reads.history import HistoryReads
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.reads.overrides import OverrideReads
from accordion_service.store.tables.models import EpochRow, EventRow, JobRow, OverrideRow


@dataclass(frozen=True, kw_only=True)
class Stay:
    """A time that a job spent in the queue."""

    begin: float
    end: float = math.inf

    def overlaps(self, since: float, until: float) -> bool:
        """Return whether it shares a moment with an interval."""
        return self.begin < until and self.end > since

    def covers(self, since: float, until: float) -> bool:
        """Return whether it lasts for all of an interval."""
        return self.begin <= since and self.end >= until


@dataclass(frozen=True, kw_only=True)
class History:
    """The rows of one job, each kind in order."""

    row: JobRow
    events: Sequence[EventRow]
    epochs: Sequence[EpochRow]
    overrides: Sequence[OverrideRow] = ()

    def find_status(self, status: str) -> EventRow | None:
        """Find the first event of a status."""
        return next((event for event in self._statuses() if event.data["status"] == status), None)

    def has_reason(self, reason: str) -> bool:
        """Return whether the job ever had a status for this reason."""
        return any(event.data["reason"] == reason for event in self._statuses())

    def list_starts(self) -> list[tuple[float, int]]:
        """List the times at which the job left the queue to start, and its workers then."""
        return [
            (event.time, event.data["workers"])
            for before, event in pairwise(self._statuses())
            if (before.data["status"], event.data["status"]) == ("QUEUED", "STARTING")
        ]

    def list_stays(self) -> list[Stay]:
        """List the times that the job spent in the queue."""
        stays: list[Stay] = []
        begin: float | None = None
        for event in self._statuses():
            is_queued = event.data["status"] == "QUEUED"
            if is_queued and begin is None:
                begin = event.time
            elif not is_queued and begin is not None:
                stays.append(Stay(begin=begin, end=event.time))
                begin = None
        return stays if begin is None else [*stays, Stay(begin=begin)]

    def list_allocations(self) -> list[tuple[float, int]]:
        """List the times at which the number of allocated workers may have changed, with the number
        from then on.
        """
        return [
            (event.time, event.data["new" if event.type == "workers" else "workers"])
            for event in self.events
            if event.type == "status" or event.data.get("what") == "granted"
        ]

    def _statuses(self) -> list[EventRow]:
        return [event for event in self.events if event.type == "status"]


def read_history(database: Database, job_id: str) -> History:
    """Read the rows of a job."""
    row = JobReads(database).get(job_id)
    assert row is not None, f"job {job_id} is gone"
    history = HistoryReads(database)
    return History(
        row=row,
        events=history.events(job_id, after=0, limit=100_000),
        epochs=history.epochs(job_id),
        overrides=OverrideReads(database).list_all(job_id),
    )
