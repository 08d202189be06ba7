"""Rows of a job's loggers: made with the job, and served again when it is retried."""

from __future__ import annotations

from sqlalchemy import case, update
from sqlalchemy.orm import Session

from service.domain.logger_states import LoggerState
from service.store.models import JobRow, LoggerRow
from workers.contract import JobSpec


def add_loggers(session: Session, job: JobRow, spec: JobSpec, *, now: float) -> None:
    """Add the loggers of a new job."""
    for number, logger in enumerate(spec.loggers):
        row = LoggerRow(job_id=job.id, number=number, kind=logger.kind, next_turn_at=now)
        session.add(row)


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


__all__ = ["add_loggers", "reopen_loggers"]
