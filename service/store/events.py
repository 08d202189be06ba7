"""Appends numbered events to a job's history."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.models import EventRow, JobRow

FIRST_EVENT = 1
"""Number of a job's first event. The row of a new job counts it, which saves an update."""
_NEWEST = "times of the newest events"
"""Key of the session's memory of them, by job; a transaction holds the locks of the jobs."""


def append_event(
    session: Session,
    job: JobRow,
    kind: str,
    *,
    data: dict[str, Any],
    now: float,
    by: str | None = None,
) -> None:
    """Append an event, dated `now` but never earlier than the previous event of the job.

    Args:
        session: transaction of the change that the event is about.
        job: job of the event.
        kind: type of the event.
        data: details of the event.
        now: seconds since 1970.
        by: user who caused the event, stored in `data`; None if the service or the workers did.
    """
    newest: dict[str, float] = session.info.setdefault(_NEWEST, {})
    if job.id not in newest:
        with session.no_autoflush:
            before = session.get(EventRow, (job.id, job.event_seq)) if job.event_seq else None
        newest[job.id] = before.time if before is not None else now
    job.event_seq += 1
    newest[job.id] = time = max(now, newest[job.id])
    _add_event(session, job, kind, data=data, time=time, by=by)


def append_first_event(
    session: Session,
    job: JobRow,
    kind: str,
    *,
    data: dict[str, Any],
    now: float,
    by: str | None = None,
) -> None:
    """Append the event that the row of a new job counts already; see `append_event`."""
    session.info.setdefault(_NEWEST, {})[job.id] = now
    _add_event(session, job, kind, data=data, time=now, by=by)


def _add_event(
    session: Session, job: JobRow, kind: str, *, data: dict[str, Any], time: float, by: str | None
) -> None:
    data = data if by is None else {**data, "by": by}
    session.add(EventRow(job_id=job.id, seq=job.event_seq, type=kind, time=time, data=data))


def reopen_history(session: Session, job: JobRow) -> None:
    """Turn the end of a job that goes on into an event like others, so that it ends no stream."""
    ends = select(EventRow).where(EventRow.job_id == job.id, EventRow.type == "end")
    for event in session.scalars(ends):
        event.type = "status"
        event.data = {
            "desired": job.desired,
            "attempt": job.attempt,
            "world_size": 0,
            "workers": 0,
            **event.data,
        }


def append_end_event(session: Session, job: JobRow, now: float, *, by: str | None = None) -> None:
    """Append the last event of a job; `by` is the user who ended it, if one did."""
    data = {"status": job.status, "reason": job.reason, "message": job.message}
    append_event(session, job, "end", data=data, now=now, by=by)
