"""Changes the status of a job: the only place that writes `JobRow.status` after the insert."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from accordion_service.domain.jobs.status_table import ENDED, is_transition_allowed
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.store.engine.events import append_event
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.webhook_messages import queue_status_messages
from accordion_workers.common.plain_text import clean_text


class ForbiddenTransition(Exception):
    """The table of transitions forbids the change: a bug of the service; nothing is written."""


def change_status(
    session: Session,
    job: JobRow,
    status: Status,
    *,
    reason: Reason,
    message: str,
    now: float,
    by: str | None = None,
) -> None:
    """Change the status of a job, and append an event if anything changed. A new status is also
    queued for the webhooks that want it. `by` is the user who asked for the change, if one did.

    Raises:
        ForbiddenTransition: `ALLOWED_TRANSITIONS` does not contain the change.
    """
    old, message = Status(job.status), clean_text(message)
    if (old, job.reason, job.message) == (status, reason, message):
        return
    if old != status and not is_transition_allowed(old, status):
        raise ForbiddenTransition(f"job {job.id} cannot go from {old} to {status}")
    job.status, job.reason, job.message = status.value, reason.value, message
    if status in ENDED:
        job.ended_at = max(now, job.started_at or job.created_at)
        job.workers, job.world_size, job.deadline = 0, 0, None
    append_event(session, job, "status", data=status_data(job), now=now, by=by)
    if status != old:
        queue_status_messages(session, job, old, now=now, by=by)


def record_first_status(
    session: Session, job: JobRow, *, now: float, by: str | None = None
) -> None:
    """Append the first event of a job, by the user who submitted it. The job's row was inserted in
    this transaction, and counts the event (`FIRST_EVENT`).
    """
    append_event(session, job, "status", data=status_data(job), now=now, by=by, is_counted=True)
    queue_status_messages(session, job, None, now=now, by=by)


def status_data(job: JobRow) -> dict[str, Any]:
    """Data of a status event."""
    return {
        "status": job.status,
        "desired": job.desired,
        "reason": job.reason,
        "message": job.message,
        "attempt": job.attempt,
        "world_size": job.world_size,
        "workers": job.workers,
    }
