"""Reads a part of a job's epochs and decisions, spread over the whole history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from accordion_service.domain.performance.thinning import Position, choose_epochs, choose_in_force
from accordion_service.store.tables.models import DecisionRow, EpochRow

_END_OF_EPOCH = 2**31
"""Larger than any step: the column holds 32-bit integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryShare:
    """How much of a history is read at most."""

    epochs: int
    """Epochs, at equal distances over the whole history and where decisions began; at least 4."""
    decisions: int
    """Decisions; at least as many as epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinnedHistory:
    """Rows of a job's history, each list oldest first."""

    epochs: Sequence[EpochRow]
    num_epochs: int
    """Number of finished epochs, also of those that are left out."""
    decisions: Sequence[DecisionRow]
    """All decisions if they fit, otherwise those in force at the ends of `epochs`, and the newest
    ones after the last of these.
    """
    num_decisions: int
    """Number of decisions, also of those that are left out."""


def thin_history(session: Session, job_id: str, share: HistoryShare) -> ThinnedHistory:
    """Read at most so many epochs and decisions of a job."""
    of_job = DecisionRow.job_id == job_id
    numbers = session.scalars(
        select(EpochRow.epoch).where(EpochRow.job_id == job_id).order_by(EpochRow.epoch)
    ).all()
    # Windows that are counted in steps may end thousands of times in an epoch; the last one counts.
    last = select(DecisionRow.epoch, func.max(DecisionRow.step)).where(of_job)
    rows = session.execute(last.group_by(DecisionRow.epoch).order_by(DecisionRow.epoch))
    starts: list[Position] = [(int(epoch), int(step)) for epoch, step in rows]
    chosen = choose_epochs(numbers, [epoch for epoch, _ in starts], share.epochs)
    epochs = _read_epochs(session, job_id, chosen)
    num_decisions = session.scalar(select(func.count()).where(of_job)) or 0
    if num_decisions <= share.decisions:
        order = (DecisionRow.epoch, DecisionRow.step)
        decisions = session.scalars(select(DecisionRow).where(of_job).order_by(*order)).all()
    else:
        in_force = choose_in_force(starts, [(row.epoch, _END_OF_EPOCH) for row in epochs])
        decisions = _read_decisions(session, job_id, in_force, limit=share.decisions)
    return ThinnedHistory(
        epochs=epochs,
        num_epochs=len(numbers),
        decisions=decisions,
        num_decisions=num_decisions,
    )


def _read_epochs(session: Session, job_id: str, numbers: Sequence[int]) -> Sequence[EpochRow]:
    query = select(EpochRow).where(EpochRow.job_id == job_id, EpochRow.epoch.in_(numbers))
    return session.scalars(query.order_by(EpochRow.epoch)).all()


def _read_decisions(
    session: Session, job_id: str, chosen: Sequence[Position], *, limit: int
) -> Sequence[DecisionRow]:
    """Read the chosen decisions, and the newest ones after the last of them."""
    query = select(DecisionRow).where(DecisionRow.job_id == job_id)
    position = tuple_(DecisionRow.epoch, DecisionRow.step)
    later = query.where(position > tuple_(*chosen[-1])) if chosen else query
    newest_first = later.order_by(DecisionRow.epoch.desc(), DecisionRow.step.desc())
    return [
        *session.scalars(
            query.where(position.in_(chosen)).order_by(DecisionRow.epoch, DecisionRow.step)
        ),
        *session.scalars(newest_first.limit(limit - len(chosen))).all()[::-1],
    ]
