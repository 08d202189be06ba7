"""Database reads of `/metrics`: a fixed number of queries per 500 jobs, each served by an index, so
that ended jobs cost nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import and_, case, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.domain.webhooks.retries import DeliveryState
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.webhooks import has_served_webhook
from accordion_service.store.tables.models import (
    AttemptRow,
    CheckpointRow,
    DecisionRow,
    DeliveryRow,
    EpochRow,
    JobRow,
    OverrideRow,
)

_JOBS_PER_QUERY = 500
"""Ids per query; databases limit the number of bound values."""
History = TypeVar("History", EpochRow, DecisionRow, CheckpointRow)


@dataclass(slots=True)
class JobHistory:
    """Data that the metrics of one job need besides its row."""

    epochs: list[EpochRow] = field(default_factory=list)
    """Newest rows, newest first."""
    decisions: list[DecisionRow] = field(default_factory=list)
    """Newest rows, newest first."""
    num_decisions: int = 0
    checkpoint: CheckpointRow | None = None
    """The newest checkpoint."""
    overrides_by_state: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingDeliveries:
    """Messages to webhooks that are not delivered."""

    count_by_state: Mapping[str, int]
    due_since: float | None
    """Due time of the message that waits longest for an attempt; None if no attempt is due."""


def read_queue_starts(database: Database) -> dict[str, float]:
    """Return when the job that waits longest began to wait, by the reason for which jobs wait.

    A job waits since a user had it queued, or since its last attempt ended.
    """
    queued_at, ended_at = JobRow.queued_at, AttemptRow.ended_at
    since = case((ended_at > queued_at, ended_at), else_=queued_at)
    newest = and_(AttemptRow.job_id == JobRow.id, AttemptRow.number == JobRow.attempt)
    query = (
        select(JobRow.reason, func.min(since))
        .outerjoin(AttemptRow, newest)
        .where(JobRow.status == Status.QUEUED, JobRow.reason != Reason.SCHEDULED)
        .group_by(JobRow.reason)
    )
    with database.read() as session:
        return {str(reason): float(time) for reason, time in session.execute(query)}


def read_deliveries(database: Database, now: float) -> WaitingDeliveries:
    """Count messages to webhooks that are not delivered; those that were are not counted, since
    they are many. Messages of a disabled webhook or user are never due.
    """
    states = [DeliveryState.PENDING.value, DeliveryState.DEAD.value]
    counts = (
        select(DeliveryRow.state, func.count())
        .where(DeliveryRow.state.in_(states))
        .group_by(DeliveryRow.state)
    )
    due = select(DeliveryRow.next_attempt_at).where(
        DeliveryRow.next_attempt_at <= now, has_served_webhook()
    )
    with database.read() as session:
        found = {str(state): int(count) for state, count in session.execute(counts)}
        return WaitingDeliveries(
            count_by_state=dict.fromkeys(states, 0) | found,
            due_since=session.scalar(due.order_by(DeliveryRow.next_attempt_at).limit(1)),
        )


def read_histories(
    database: Database, job_ids: Sequence[str], *, look_back: int
) -> Mapping[str, JobHistory]:
    """Read histories by job id, with the newest `look_back` epochs and decisions of each job."""
    found: dict[str, JobHistory] = defaultdict(JobHistory)
    with database.read() as session:
        for first in range(0, len(job_ids), _JOBS_PER_QUERY):
            _read_rows(
                session, job_ids[first : first + _JOBS_PER_QUERY], found, look_back=look_back
            )
    return found


def _read_rows(
    session: Session, ids: Sequence[str], found: Mapping[str, JobHistory], *, look_back: int
) -> None:
    for epoch in _read_newest(session, ids, [EpochRow.epoch], count=look_back):
        found[epoch.job_id].epochs.append(epoch)
    for decision in _read_newest(
        session, ids, [DecisionRow.step, DecisionRow.epoch], count=look_back
    ):
        found[decision.job_id].decisions.append(decision)
    for checkpoint in _read_newest(session, ids, [CheckpointRow.time, CheckpointRow.name], count=1):
        found[checkpoint.job_id].checkpoint = checkpoint
    counts = (
        select(DecisionRow.job_id, func.count())
        .where(DecisionRow.job_id.in_(ids))
        .group_by(DecisionRow.job_id)
    )
    for job_id, count in session.execute(counts):
        found[job_id].num_decisions = count
    overrides = select(OverrideRow.job_id, OverrideRow.state, func.count()).where(
        OverrideRow.job_id.in_(ids)
    )
    for job_id, state, count in session.execute(
        overrides.group_by(OverrideRow.job_id, OverrideRow.state)
    ):
        found[job_id].overrides_by_state[state] = count


def _read_newest(
    session: Session, ids: Sequence[str], order: Sequence[InstrumentedAttribute[Any]], *, count: int
) -> Iterator[Any]:
    """Read the newest rows of each job, newest first; `order` are columns of one table."""
    table = order[0].class_
    newest_first = [column.desc() for column in order]
    place = func.row_number().over(partition_by=table.job_id, order_by=newest_first).label("place")
    numbered = select(table, place).where(table.job_id.in_(ids)).subquery()
    row = aliased(table, numbered)
    yield from session.scalars(
        select(row).where(numbered.c.place <= count).order_by(numbered.c.job_id, numbered.c.place)
    )
