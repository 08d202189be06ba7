"""Why the worker groups of an attempt start, and what its first one repeats if the attempt before
it was lost: a supervisor knows the groups of its own attempt only.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from accordion_service.domain.jobs.statuses import Reason
from accordion_service.store.ingest.guest_losses import ReportedStep
from accordion_service.store.tables.models import AttemptRow, EventRow, JobRow
from accordion_workers.records.contract import Record, Started

_LOST = frozenset({Reason.WORKERS_LOST, Reason.NOT_PLACED})
"""Reasons of attempts that have trained and ended without saving: their machines were lost, or the
group after one that failed had no room.
"""


def count_lost_group(job: JobRow) -> None:
    """Count the worker group that trained when its attempt was lost, if one did."""
    job.failures += job.world_size > 0


def find_lost_attempt(session: Session, job: JobRow, number: int) -> AttemptRow | None:
    """Return the attempt that trained last before the first group of attempt `number`, if it was
    lost and no user has retried the job since.
    """
    trained = select(AttemptRow).where(
        AttemptRow.job_id == job.id,
        AttemptRow.number <= number,
        AttemptRow.started_at.is_not(None),
    )
    last = session.scalars(trained.order_by(AttemptRow.number.desc()).limit(1)).first()
    if last is None or last.number == number or last.number <= (job.retried_attempt or 0):
        return None
    return last if last.reason in _LOST else None


def count_loss(
    started: Started, lost: AttemptRow, last: ReportedStep | None, *, queued_at: float, now: float
) -> Started:
    """Return the start with the steps of the lost attempt that it repeats, and the seconds since
    the last of them. The time before `queued_at`, when a user last queued the job, is not lost.
    """
    step, stepped_at = last or (0, lost.ended_at or now)
    return started.model_copy(
        update={
            "steps_rolled_back": max(0, step - started.step),
            "seconds_lost": max(0.0, now - max(stepped_at, queued_at)),
        }
    )


def find_cause(
    session: Session, record: Record, started: Started, *, job: JobRow, lost: AttemptRow | None
) -> str:
    """Return why a worker group started: `start`, or the cause of the change before it."""
    if lost is not None and lost.reason == Reason.WORKERS_LOST:
        return "infrastructure"
    if lost is None and started.cause == "start":
        return "start"
    return _find_announced_cause(session, job, lost.number if lost is not None else record.attempt)


def _find_announced_cause(session: Session, job: JobRow, number: int) -> str:
    """Return the cause of the newest resize or failure of an attempt."""
    changes = select(EventRow.data).where(EventRow.job_id == job.id, EventRow.type == "workers")
    for data in session.scalars(changes.order_by(EventRow.seq.desc())):
        if data.get("attempt") == number and data.get("what") in {"resizing", "failed"}:
            return str(data.get("cause", "unknown"))
    return "unknown"


__all__ = ["count_loss", "count_lost_group", "find_cause", "find_lost_attempt"]
