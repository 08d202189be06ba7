"""Limits on the events and the output that the database keeps of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from accordion_service.store.tables.models import EventRow, JobRow, LogChunkRow

_SPARE = 10
"""A history above its limit is cut to this fraction below it (a tenth), so that cuts are rare."""


MAX_REMOVED = 1000
"""Most events, and most chunks of output, that a transaction removes: more take longer than the
other writers should wait.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLimits:
    """What is kept of each job; 0 keeps all."""

    events: int = 0
    """Events."""
    log_bytes: int = 0
    """Bytes of output, as JSON."""


def trim_history(session: Session, jobs: Sequence[JobRow], limits: HistoryLimits) -> None:
    """Remove the oldest events and output of the job that has most of them, if it has more than its
    limits; the newest event and the newest chunk stay.

    Jobs that began together pass a limit together, so no transaction removes more than
    `MAX_REMOVED` rows of one of them; the others follow with later transactions.
    """
    longest = max(jobs, key=_count_events, default=None)
    if longest is not None and limits.events and _count_events(longest) > limits.events:
        _trim_events(session, longest, limits.events - limits.events // _SPARE)
    largest = max(jobs, key=lambda job: job.log_bytes, default=None)
    if largest is not None and limits.log_bytes and largest.log_bytes > limits.log_bytes:
        _trim_output(session, largest, limits.log_bytes - limits.log_bytes // _SPARE)


def trim_ended(session: Session, job: JobRow) -> bool:
    """Remove the oldest events and output of a job that has ended, up to `MAX_REMOVED` of each; its
    end, what follows that, and the newest chunk stay. Return whether more remain to be removed.
    """
    ends = select(EventRow.seq).where(EventRow.job_id == job.id, EventRow.type == "end")
    end = session.scalar(ends.order_by(EventRow.seq.desc()).limit(1)) or job.event_seq
    num_events = _trim_events(session, job, job.event_seq - end + 1)
    num_chunks = _trim_output(session, job, 0)
    return MAX_REMOVED in {num_events, num_chunks}


def _count_events(job: JobRow) -> int:
    return job.event_seq - job.events_removed


def _trim_events(session: Session, job: JobRow, kept: int) -> int:
    """Remove the oldest events above a number that is kept; return how many were removed."""
    before = job.events_removed
    job.events_removed = max(before, min(job.event_seq - kept, before + MAX_REMOVED))
    session.flush()  # the events of this transaction may be more than are kept
    session.execute(
        delete(EventRow).where(EventRow.job_id == job.id, EventRow.seq <= job.events_removed)
    )
    return job.events_removed - before


def _trim_output(session: Session, job: JobRow, kept: int) -> int:
    """Remove the oldest chunks above a number of bytes that is kept; return how many chunks were
    removed.
    """
    session.flush()  # the newest chunk is part of the sum
    sizes = select(LogChunkRow.number, LogChunkRow.size_bytes).where(
        LogChunkRow.job_id == job.id, LogChunkRow.number < job.log_number
    )
    removed = last = count = 0
    for number, size_bytes in session.execute(
        sizes.order_by(LogChunkRow.number).limit(MAX_REMOVED)
    ):
        if job.log_bytes - removed <= kept:
            break
        removed, last, count = removed + size_bytes, number, count + 1
    session.execute(
        delete(LogChunkRow).where(LogChunkRow.job_id == job.id, LogChunkRow.number <= last)
    )
    job.log_bytes -= removed
    job.log_bytes_removed += removed
    return count


__all__ = ["MAX_REMOVED", "HistoryLimits", "trim_ended", "trim_history"]
