"""The queue: jobs that wait, what for, and those that hold workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import defer

from accordion_service.domain.capacity.waiting_message import WAITS_ITS_TURN
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.jobs import IS_UNFINISHED
from accordion_service.store.reads.rows import read_first_row, read_rows
from accordion_service.store.tables.models import JobRow

_REPORTED = (
    JobRow.progress,
    JobRow.layers,
    JobRow.metrics,
    JobRow.storage,
    JobRow.ray_run,
    JobRow.packages,
    JobRow.tally,
)
"""Columns whose documents take longer to parse than all others of a job."""
_SCHEDULED = (
    select(JobRow)
    .where(JobRow.status == Status.QUEUED, JobRow.reason == Reason.SCHEDULED)
    .order_by(JobRow.start_at, JobRow.id)
)
"""Jobs that are queued at a later time."""


@dataclass(frozen=True, slots=True)
class QueueReads:
    """Reads queued jobs, and those that hold workers."""

    database: Database

    def waiting(self, points_per_s: float = 0.0) -> list[JobRow]:
        """Waiting jobs whose time has come, in the order of the queue; each second since a job was
        queued raises its priority by so many points.
        """
        # Every job gains alike, so the order does not depend on the present time.
        rank = JobRow.priority - JobRow.queued_at * points_per_s
        query = select(JobRow).where(
            JobRow.status == Status.QUEUED, JobRow.reason != Reason.SCHEDULED
        )
        return read_rows(self.database, query.order_by(rank.desc(), JobRow.created_at, JobRow.id))

    def scheduled(self) -> list[JobRow]:
        """Jobs that are queued at a later time, in the order of that time."""
        return read_rows(self.database, _SCHEDULED)

    def due(self, now: float) -> list[JobRow]:
        """Jobs whose time to be queued has come, in seconds since 1970."""
        return read_rows(self.database, _SCHEDULED.where(JobRow.start_at <= now))

    def first_without_capacity(self, rows: Sequence[JobRow]) -> str | None:
        """Id of the first queued job without capacity; None if none of these rows waits
        behind one.
        """
        if all(row.message != WAITS_ITS_TURN for row in rows):
            return None
        queue = select(JobRow.id).where(
            JobRow.status == Status.QUEUED,
            JobRow.reason == Reason.WAITING_FOR_ROOM,
            JobRow.message != WAITS_ITS_TURN,
        )
        return read_first_row(
            self.database, queue.order_by(JobRow.priority.desc(), JobRow.created_at, JobRow.id)
        )

    def allocated(self) -> list[JobRow]:
        """Jobs that hold workers, in the order of priority and age, without what they reported."""
        query = select(JobRow).where(IS_UNFINISHED, JobRow.workers > 0)
        query = query.options(*(defer(column, raiseload=True) for column in _REPORTED))
        return read_rows(
            self.database, query.order_by(JobRow.priority.desc(), JobRow.created_at, JobRow.id)
        )
