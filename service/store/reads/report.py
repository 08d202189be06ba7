"""Reads for the report of a job: one snapshot, and bounded however long its history is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Select, func, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.domain.performance.thinning import Position, choose_in_force, thin_evenly
from service.store.engine.database import Database
from service.store.tables.models import (
    AttemptRow,
    DecisionRow,
    EpochRow,
    EventRow,
    JobRow,
    LogChunkRow,
    OverrideRow,
)

Row = TypeVar("Row")
_CHUNKS = 40
"""Number of the newest batches of output lines that are read."""
_END_OF_EPOCH = 2**31
"""Larger than any step: the column holds 32-bit integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLimits:
    """How many items of each kind are read at most."""

    epochs: int
    """Epochs, at equal distances over the whole history."""
    decisions: int
    """Decisions; at least as many as epochs."""
    items: int
    """Newest attempts, overrides and events, of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRows:
    """Rows of a job's history, each list oldest first."""

    epochs: Sequence[EpochRow]
    num_epochs: int
    """Number of finished epochs, also of those that are left out."""
    decisions: Sequence[DecisionRow]
    """All decisions if they fit, otherwise those in force at the ends of `epochs`, and the newest
    ones after the last of these.
    """
    num_decisions: int
    """Number of decisions, also of those that are left out."""
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
    decisions = select(DecisionRow).where(DecisionRow.job_id == job_id)
    removed = select(JobRow.events_removed, JobRow.log_bytes_removed).where(JobRow.id == job_id)
    with database.read() as session:
        events_removed, log_bytes_removed = session.execute(removed).first() or (0, 0)
        numbers = session.scalars(
            select(EpochRow.epoch).where(EpochRow.job_id == job_id).order_by(EpochRow.epoch)
        ).all()
        epochs = _read_epochs(session, job_id, thin_evenly(numbers, limits.epochs))
        num_decisions = _count_rows(session, decisions)
        if num_decisions <= limits.decisions:
            shown = session.scalars(decisions.order_by(DecisionRow.epoch, DecisionRow.step)).all()
        else:
            shown = _choose_decisions(session, job_id, epochs, limit=limits.decisions)
        return ReportRows(
            epochs=epochs,
            num_epochs=len(numbers),
            decisions=shown,
            num_decisions=num_decisions,
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


def _read_epochs(session: Session, job_id: str, numbers: Sequence[int]) -> Sequence[EpochRow]:
    query = select(EpochRow).where(EpochRow.job_id == job_id, EpochRow.epoch.in_(numbers))
    return session.scalars(query.order_by(EpochRow.epoch)).all()


def _choose_decisions(
    session: Session, job_id: str, epochs: Sequence[EpochRow], *, limit: int
) -> Sequence[DecisionRow]:
    """Read the decisions in force at the ends of epochs, and the newest ones after the last end."""
    query = select(DecisionRow).where(DecisionRow.job_id == job_id)
    # Windows that are counted in steps may end thousands of times in an epoch; the last one counts.
    last = select(DecisionRow.epoch, func.max(DecisionRow.step)).where(DecisionRow.job_id == job_id)
    rows = session.execute(last.group_by(DecisionRow.epoch).order_by(DecisionRow.epoch))
    starts: list[Position] = [(int(epoch), int(step)) for epoch, step in rows]
    chosen = choose_in_force(starts, [(row.epoch, _END_OF_EPOCH) for row in epochs])
    in_force = query.where(tuple_(DecisionRow.epoch, DecisionRow.step).in_(chosen))
    later = query.where(DecisionRow.epoch > (epochs[-1].epoch if epochs else -1))
    newest_first = later.order_by(DecisionRow.epoch.desc(), DecisionRow.step.desc())
    return [
        *session.scalars(in_force.order_by(DecisionRow.epoch, DecisionRow.step)),
        *session.scalars(newest_first.limit(limit - len(chosen))).all()[::-1],
    ]
