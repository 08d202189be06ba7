"""What a new worker group of a guest run repeats, by what the group before it has reported.

A killed group leaves its last step in a file that may be seconds old, and its reports are newer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from accordion_service.domain.jobs.statuses import Kind
from accordion_service.store.tables.models import AttemptRow, DecisionRow, JobRow
from accordion_workers.records.contract import Started


class ReportedStep(NamedTuple):
    """The newest step that a worker group has reported."""

    step: int
    time: float


def find_last_step(
    session: Session, job: JobRow, progresses: Iterable[Mapping[str, Any] | None]
) -> ReportedStep | None:
    """Return the newest step in these progresses, and in stored decisions, of the worker group of a
    guest run that started last; None if it reported no step, and for jobs of the service, whose
    supervisor knows the step.
    """
    attempt = session.get(AttemptRow, (job.id, job.attempt))
    if job.kind != Kind.GUEST or attempt is None:
        return None
    return find_newest_step(session, attempt, progresses)


def find_newest_step(
    session: Session, attempt: AttemptRow, progresses: Iterable[Mapping[str, Any] | None]
) -> ReportedStep | None:
    """Return the newest step in these progresses, and in stored decisions, of the worker group that
    the attempt started last; None if it reported no step.
    """
    group = (attempt.number, attempt.generation)
    reported = [
        ReportedStep(progress["step"], progress["time"])
        for progress in progresses
        if progress is not None and (progress["attempt"], progress["generation"]) == group
    ]
    query = select(DecisionRow.step, DecisionRow.time).where(
        DecisionRow.job_id == attempt.job_id, DecisionRow.generation == attempt.generation
    )
    newest = query.order_by(DecisionRow.step.desc()).limit(1)
    reported += [ReportedStep(*row) for row in session.execute(newest)]
    return max(reported, default=None)


def count_loss(started: Started, last: ReportedStep | None, *, now: float) -> Started:
    """Return the start with at least the steps that the group before it reported, and at most the
    seconds since.
    """
    if last is None:
        return started
    return started.model_copy(
        update={
            "steps_rolled_back": max(started.steps_rolled_back, last.step - started.step),
            "seconds_lost": min(started.seconds_lost, max(0.0, now - last.time)),
        }
    )


def count_steps(step: int | None, last: ReportedStep | None) -> int | None:
    """Return the step of a group's end, which is at least the one that it reported."""
    return step if last is None or step is None else max(step, last.step)


__all__ = ["ReportedStep", "count_loss", "count_steps", "find_last_step", "find_newest_step"]
