"""What a job has done so far: attempts, epochs, decisions, checkpoints, events and logs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Select, and_, func, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from accordion_service.store.engine.database import Database
from accordion_service.store.reads.rows import Row, read_first_row, read_rows
from accordion_service.store.tables.models import (
    AttemptRow,
    CheckpointRow,
    DecisionRow,
    EpochRow,
    EventRow,
    JobRow,
    LogChunkRow,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """Part of a history to read."""

    limit: int | None = None
    newest_first: bool = False
    beyond: tuple[int, ...] | None = None
    """Position of the last item of the previous page."""

    def cut(
        self, query: Select[Row], position: Sequence[InstrumentedAttribute[int]]
    ) -> Select[Row]:
        """Restrict and order a query; `position` are the columns that order it."""
        if self.beyond is not None:
            here, last = tuple_(*position), tuple_(*self.beyond)
            query = query.where(here < last if self.newest_first else here > last)
        return query.order_by(
            *(column.desc() if self.newest_first else column for column in position)
        ).limit(self.limit)


WHOLE_HISTORY = HistoryPage()


@dataclass(frozen=True, slots=True)
class HistoryReads:
    """Reads the history of a job."""

    database: Database

    def attempts(self, job_id: str) -> list[AttemptRow]:
        """All attempts, oldest first."""
        return read_rows(
            self.database,
            select(AttemptRow).where(AttemptRow.job_id == job_id).order_by(AttemptRow.number),
        )

    def newest_attempts(self, job_ids: Collection[str]) -> dict[str, AttemptRow]:
        """The newest attempt of each of these jobs, by job id, in one query."""
        newest = and_(JobRow.id == AttemptRow.job_id, JobRow.attempt == AttemptRow.number)
        query = select(AttemptRow).join(JobRow, newest).where(JobRow.id.in_(job_ids))
        return {row.job_id: row for row in read_rows(self.database, query)} if job_ids else {}

    def epochs(self, job_id: str, page: HistoryPage = WHOLE_HISTORY) -> list[EpochRow]:
        """Finished epochs; the whole history, oldest first, by default."""
        query = select(EpochRow).where(EpochRow.job_id == job_id)
        return read_rows(self.database, page.cut(query, [EpochRow.epoch]))

    def count_epochs(self, job_id: str) -> int:
        """Number of finished epochs."""
        with self.database.read() as session:
            return session.scalar(select(func.count()).where(EpochRow.job_id == job_id)) or 0

    def decisions(self, job_id: str, page: HistoryPage = WHOLE_HISTORY) -> list[DecisionRow]:
        """Decisions; the whole history, oldest first, by default."""
        query = select(DecisionRow).where(DecisionRow.job_id == job_id)
        return read_rows(self.database, page.cut(query, [DecisionRow.epoch, DecisionRow.step]))

    def count_decisions(self, job_id: str) -> int:
        """Number of decisions."""
        with self.database.read() as session:
            return session.scalar(select(func.count()).where(DecisionRow.job_id == job_id)) or 0

    def newest_decision(self, job_id: str) -> DecisionRow | None:
        """The decision in force."""
        query = select(DecisionRow).where(DecisionRow.job_id == job_id)
        return read_first_row(
            self.database, query.order_by(DecisionRow.step.desc(), DecisionRow.epoch.desc())
        )

    def checkpoints(self, job_id: str) -> list[CheckpointRow]:
        """All checkpoints that were reported, oldest first."""
        query = select(CheckpointRow).where(CheckpointRow.job_id == job_id)
        return read_rows(self.database, query.order_by(CheckpointRow.time, CheckpointRow.name))

    def saved_step(self, job_id: str) -> int:
        """Steps that the newest checkpoint of the job holds; 0 without one, and if retention has
        removed them all.
        """
        newest = select(func.max(CheckpointRow.step)).where(
            CheckpointRow.job_id == job_id, CheckpointRow.removed_at.is_(None)
        )
        with self.database.read() as session:
            return session.scalar(newest) or 0

    def events(self, job_id: str, *, after: int, limit: int = 500) -> list[EventRow]:
        """Events above that number, in order."""
        query = select(EventRow).where(EventRow.job_id == job_id, EventRow.seq > after)
        return read_rows(self.database, query.order_by(EventRow.seq).limit(limit))

    def logs(self, job_id: str, *, after: int = 0, limit: int = 500) -> list[LogChunkRow]:
        """Chunks of log lines above that number, in order."""
        query = select(LogChunkRow).where(LogChunkRow.job_id == job_id, LogChunkRow.number > after)
        return read_rows(self.database, query.order_by(LogChunkRow.number).limit(limit))

    def newest_logs(self, job_id: str, *, up_to: int, limit: int = 50) -> list[LogChunkRow]:
        """Chunks of log lines up to that number, the newest first."""
        query = select(LogChunkRow).where(LogChunkRow.job_id == job_id, LogChunkRow.number <= up_to)
        return read_rows(self.database, query.order_by(LogChunkRow.number.desc()).limit(limit))
