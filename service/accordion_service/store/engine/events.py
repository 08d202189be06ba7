"""Appends numbered events to a job's history."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from accordion_service.store.tables.models import EventRow, JobRow

FIRST_EVENT = 1
"""Number of a job's first event. The row of a new job counts it, which saves an update."""
_NEWEST = "times of the newest events"
_APPENDED = "appended events"
"""Keys of the session's memory of events. Objects of the session would take longer to insert."""


def append_event(
    session: Session,
    job: JobRow,
    kind: str,
    *,
    data: dict[str, Any],
    now: float,
    by: str | None = None,
    is_counted: bool = False,
) -> None:
    """Append an event, dated `now` but never earlier than the previous event of the job.

    Args:
        session: transaction of the change that the event is about.
        job: job of the event.
        kind: type of the event.
        data: details of the event.
        now: seconds since 1970.
        by: user who caused the event, stored in `data`; None if the service or the workers did.
        is_counted: whether the row of the job counts the event already (`FIRST_EVENT`).
    """
    newest = _newest_times(session)
    if not is_counted:
        if job.event_seq and job.id not in newest:
            load_newest_times(session, [job.id])
        job.event_seq += 1
    newest[job.id] = time = max(now, newest.get(job.id, now))
    data = data if by is None else {**data, "by": by}
    row = {"job_id": job.id, "seq": job.event_seq, "type": kind, "time": time, "data": data}
    session.info.setdefault(_APPENDED, []).append(row)


def store_events(session: Session, _context: object) -> None:
    """Insert the events that were appended since the last flush; for `after_flush`."""
    rows = session.info.pop(_APPENDED, None)
    if rows:
        session.connection().execute(insert(EventRow), rows)


def store_last_events(session: Session) -> None:
    """Insert the events that no flush has inserted, after the rows of their jobs; for
    `before_commit`.
    """
    if session.info.get(_APPENDED):
        session.flush()
        store_events(session, None)


def load_newest_times(session: Session, job_ids: Collection[str]) -> None:
    """Read when the newest events of jobs were, for `append_event`, in one query."""
    is_newest = (EventRow.job_id == JobRow.id) & (EventRow.seq == JobRow.event_seq)
    query = select(JobRow.id, EventRow.time).join(EventRow, is_newest)
    with session.no_autoflush:
        found = session.execute(query.where(JobRow.id.in_(job_ids)))
        _newest_times(session).update(found.all())


def _newest_times(session: Session) -> dict[str, float]:
    """Times of the newest events by job: a transaction holds the locks of the jobs."""
    times: dict[str, float] = session.info.setdefault(_NEWEST, {})
    return times


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
