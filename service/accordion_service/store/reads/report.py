"""Reads for the report of a job: one snapshot, and bounded however long its history is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from accordion_service.store.engine.database import Database
from accordion_service.store.reads.thinned_history import HistoryShare, ThinnedHistory, thin_history
from accordion_service.store.tables.models import (
    AttemptRow,
    EventRow,
    JobRow,
    LogChunkRow,
    OverrideRow,
)

Row = TypeVar("Row")
_CHUNKS = 40
"""Number of the newest batches of output lines that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLimits:
    """How many items of each kind are read at most."""

    history: HistoryShare
    """Epochs and decisions."""
    items: int
    """Newest attempts, overrides and events, of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRows:
    """Rows of a job's history, each list oldest first."""

    history: ThinnedHistory
    attempts: Sequence[AttemptRow]
    num_attempts: int
    """Number of attempts, also of those that are left out."""
    overrides: Sequence[OverrideRow]
    num_overrides: int
    """Number of overrides, also of those that are left out."""
    events: Sequence[EventRow]
    num_events: int
    """Number of events of the given types, also of those that are left out."""
    log_chunks: Sequence[LogChunkRow]
    events_removed: int
    """Number of events, of any type, that are no longer kept."""
    log_bytes_removed: int
    """Size of the output that is no longer kept."""


def read_report_rows(
    database: Database, job_id: str, limits: ReportLimits, *, event_types: Collection[str]
) -> ReportRows:
    """Read what a report shows of a job; of its events only those of the given types."""
    attempts = select(AttemptRow).where(AttemptRow.job_id == job_id)
    overrides = select(OverrideRow).where(OverrideRow.job_id == job_id)
    events = select(EventRow).where(EventRow.job_id == job_id, EventRow.type.in_(event_types))
    chunks = select(LogChunkRow).where(LogChunkRow.job_id == job_id)
    removed = select(JobRow.events_removed, JobRow.log_bytes_removed).where(JobRow.id == job_id)
    with database.read() as session:
        events_removed, log_bytes_removed = session.execute(removed).first() or (0, 0)
        return ReportRows(
            history=thin_history(session, job_id, limits.history),
            attempts=_read_newest(session, attempts, AttemptRow.number, limit=limits.items),
            num_attempts=_count_rows(session, attempts),
            overrides=_read_newest(session, overrides, OverrideRow.number, limit=limits.items),
            num_overrides=_count_rows(session, overrides),
            events=_read_newest(session, events, EventRow.seq, limit=limits.items),
            num_events=_count_rows(session, events),
            log_chunks=_read_newest(session, chunks, LogChunkRow.number, limit=_CHUNKS),
            events_removed=events_removed,
            log_bytes_removed=log_bytes_removed,
        )


def _read_newest(
    session: Session, query: Select[Row], number: InstrumentedAttribute[int], *, limit: int
) -> Sequence[Row]:
    return session.scalars(query.order_by(number.desc()).limit(limit)).all()[::-1]


def _count_rows(session: Session, query: Select[Any]) -> int:
    return session.scalar(query.with_only_columns(func.count())) or 0
