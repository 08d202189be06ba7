"""Database reads of `/metrics`: a fixed number of queries per 500 jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from service.store.database import Database
from service.store.models import CheckpointRow, DecisionRow, EpochRow, OverrideRow

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
