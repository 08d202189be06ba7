"""Limits on the events and the output that the database keeps of a job."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.store.models import EventRow, JobRow, LogChunkRow

_SPARE = 10
"""A history above its limit is cut to this fraction below it (a tenth), so that cuts are rare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLimits:
    """What is kept of each job; 0 keeps all."""

    events: int = 0
    """Events."""
    log_bytes: int = 0
    """Bytes of output, as JSON."""


def trim_history(session: Session, job: JobRow, limits: HistoryLimits) -> None:
    """Remove the oldest events and output of a job that has more than its limits; the newest event
    and the newest chunk stay.
    """
    if limits.events and job.event_seq - job.events_removed > limits.events:
        _trim_events(session, job, limits.events - limits.events // _SPARE)
    if limits.log_bytes and job.log_bytes > limits.log_bytes:
        _trim_output(session, job, limits.log_bytes - limits.log_bytes // _SPARE)


def _trim_events(session: Session, job: JobRow, kept: int) -> None:
    job.events_removed = job.event_seq - kept
    session.flush()  # the events of this transaction may be more than are kept
    session.execute(
        delete(EventRow).where(EventRow.job_id == job.id, EventRow.seq <= job.events_removed)
    )


def _trim_output(session: Session, job: JobRow, kept: int) -> None:
    session.flush()  # the newest chunk is part of the sum
    sizes = select(LogChunkRow.number, LogChunkRow.size_bytes).where(
        LogChunkRow.job_id == job.id, LogChunkRow.number < job.log_number
    )
    removed, last = 0, 0
    for number, size_bytes in session.execute(sizes.order_by(LogChunkRow.number)):
        if job.log_bytes - removed <= kept:
            break
        removed, last = removed + size_bytes, number
    session.execute(
        delete(LogChunkRow).where(LogChunkRow.job_id == job.id, LogChunkRow.number <= last)
    )
    job.log_bytes -= removed
    job.log_bytes_removed += removed


__all__ = ["HistoryLimits", "trim_history"]
