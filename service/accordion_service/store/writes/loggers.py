"""Rows of a job's loggers: made with the job, and served again when it is retried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, case, select, update
from sqlalchemy.orm import Session

from accordion_service.domain.jobs.loggers import LoggerState
from accordion_service.store.reads.jobs import IS_UNFINISHED
from accordion_service.store.tables.models import JobRow, LoggerRow
from accordion_workers.records.contract import JobSpec


def add_loggers(session: Session, job: JobRow, spec: JobSpec, *, now: float) -> None:
    """Add the loggers of a new job."""
    for number, logger in enumerate(spec.loggers):
        row = LoggerRow(job_id=job.id, number=number, kind=logger.kind, next_turn_at=now)
        session.add(row)


def list_sending(session: Session, owner: str) -> Sequence[Row[str, str, Any, int]]:
    """Return the loggers of a user's ended jobs that are neither done nor given up: ID, name and
    spec of the job, and the number of the logger.
    """
    # SQLite would read all loggers for `IS NOT NULL`, and with the join alone all jobs of the user.
    follows = LoggerRow.next_turn_at > 0.0
    is_served = JobRow.id.in_(select(LoggerRow.job_id).where(follows))
    query = (
        select(JobRow.id, JobRow.name, JobRow.spec, LoggerRow.number)
        .join(LoggerRow, LoggerRow.job_id == JobRow.id)
        .where(is_served, follows, JobRow.owner == owner, ~IS_UNFINISHED)
        .order_by(JobRow.created_at, JobRow.id)
    )
    return session.execute(query).all()


def reopen_loggers(session: Session, job: JobRow, *, now: float) -> None:
    """Serve the loggers of a job that goes on; their runs go on, too."""
    ended = (LoggerState.DONE.value, LoggerState.GIVEN_UP.value)
    state = case((LoggerRow.state.in_(ended), LoggerState.WAITING.value), else_=LoggerRow.state)
    # The new version also drops the outcome of a turn in flight, which knows only the ended job.
    session.execute(
        update(LoggerRow)
        .where(LoggerRow.job_id == job.id)
        .values(state=state, version=LoggerRow.version + 1, next_turn_at=now, failures=0)
    )


__all__ = ["add_loggers", "list_sending", "reopen_loggers"]
