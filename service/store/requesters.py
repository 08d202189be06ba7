"""Finds the users whose requests the scheduler and the workers carry out, so that events can name
them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.domain.jobs import Desired, Reason
from service.store.models import EventRow, JobRow, OverrideRow

_MAX_EVENTS = 100
"""Events of one type that are read at most: a request is carried out within a few."""
_REQUESTS: Mapping[Desired, Reason] = {
    Desired.PAUSE: Reason.PAUSE_REQUESTED,
    Desired.RUN: Reason.RESUMED,
    Desired.CANCEL: Reason.CANCEL_REQUESTED,
}
"""Reason of the status event of a request, by what it asks for."""


def find_requester(session: Session, job: JobRow) -> str | None:
    """Return the user who asked a job that leaves its workers to pause, to go on or to stop; None
    if the service decided it.
    """
    wanted = _REQUESTS[Desired(job.desired)]
    for data in _read_newest(session, job, "status"):
        if data.get("reason") == wanted:
            return _user_in(data)
    return None


def find_resizer(session: Session, job: JobRow, *, workers: int) -> str | None:
    """Return the user whose new limits are why a job gets another number of workers; None if its
    old limits allowed both numbers, so that the scheduler chose.
    """
    for data in _read_newest(session, job, "workers"):
        if data.get("what") == "granted" or data.get("cause") == "start":
            return None
        if data.get("what") == "allowed" and _forces_change(data, old=job.workers, new=workers):
            return _user_in(data)
    return None


def find_allocation_user(session: Session, job: JobRow, *, workers: int) -> str | None:
    """Return the user that the newest allocation names, if the job resizes to its number."""
    for data in _read_newest(session, job, "workers"):
        if data.get("what") == "granted":
            return _user_in(data) if data.get("new") == workers else None
    return None


def find_override_users(session: Session, override_ids: Collection[str]) -> dict[str, str]:
    """Return the users who requested these overrides, by the ID of the override; those from before
    users existed are left out.
    """
    if not override_ids:
        return {}
    query = select(OverrideRow.id, OverrideRow.requested_by).where(
        OverrideRow.id.in_(override_ids), OverrideRow.requested_by.is_not(None)
    )
    return {override_id: user for override_id, user in session.execute(query) if user}


def _read_newest(session: Session, job: JobRow, kind: str) -> list[dict[str, Any]]:
    """Return the data of the newest events of a type, newest first, without unreadable ones."""
    query = (
        select(EventRow.data)
        .where(EventRow.job_id == job.id, EventRow.type == kind)
        .order_by(EventRow.seq.desc())
        .limit(_MAX_EVENTS)
    )
    return [data for data in session.scalars(query) if isinstance(data, dict)]


def _forces_change(limits: Mapping[str, Any], *, old: int, new: int) -> bool:
    """Whether new limits forbid the old number of workers, or allow a new one that was forbidden.

    Events of older versions do not have the previous limits.
    """
    least, most = limits["min"], limits["max"]
    was_allowed = limits.get("previous_min", least) <= new <= limits.get("previous_max", most)
    return not was_allowed or not least <= old <= most


def _user_in(data: Mapping[str, Any]) -> str | None:
    user = data.get("by")
    return user if isinstance(user, str) else None
