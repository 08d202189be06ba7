"""The side of the process that serves loggers: which are due, claims of turns, and their outcomes.

A turn is claimed in one transaction and its outcome is recorded in another, so that none is open
while something is sent. If the process dies in between, the turn is due again when its claim ends,
and the same epochs are sent once more: each kind of logger takes them twice without doubling them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass

from sqlalchemy import ColumnElement, CursorResult, func, or_, select, tuple_, update

from accordion_service.domain.jobs.loggers import EpochPosition, LoggerState
from accordion_service.domain.jobs.status_table import ENDED
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import EpochRow, JobRow, LoggerRow, UserRow

CLAIM_S = 300.0
"""Seconds for which a turn belongs to the process that claimed it."""
MAX_EPOCHS = 1000
"""Maximum number of epochs that one turn sends."""
MAX_DUE = 200
"""Maximum number of loggers that one look for due ones returns."""
LoggerKey = tuple[str, int]
"""ID of a job, and the number of one of its loggers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueLogger:
    """A logger that may have something to send."""

    key: LoggerKey
    kind: str
    owner: str
    """Owner of its job; empty without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTurn:
    """One turn of a logger."""

    key: LoggerKey
    version: int
    failures: int
    """Failed turns in a row before this one."""
    sent: EpochPosition
    """Newest epoch that is sent."""
    run_id: str
    location: str
    job: JobRow
    epochs: list[EpochRow]
    """Epochs to send, in the order in which they were stored."""
    has_more: bool
    """Whether more epochs follow, for another turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """Outcome of a turn in which everything was sent."""

    sent: EpochPosition
    run_id: str = ""
    location: str = ""
    state: LoggerState
    next_s: float | None
    """Seconds until the next turn; None if none follows."""


class LoggerQueue:
    """Claims turns and records outcomes; two processes may do so at once."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def has_due(self) -> bool:
        """Return whether a logger is due."""
        with self._database.read() as session:
            query = select(LoggerRow.number).where(*_is_due(self._clock()))
            return session.execute(query.limit(1)).first() is not None

    def list_due(
        self,
        *,
        without: Collection[LoggerKey] = (),
        full_kinds: Collection[str] = (),
        per_owner: int = MAX_DUE,
    ) -> list[DueLogger]:
        """Return the loggers that are due, the one that waits longest first, without these and
        those of full kinds; of one owner, at most so many of a kind.
        """
        place = func.row_number().over(
            partition_by=(LoggerRow.kind, JobRow.owner),
            order_by=(LoggerRow.next_turn_at, LoggerRow.job_id, LoggerRow.number),
        )
        wanted = [*_is_due(self._clock()), LoggerRow.kind.not_in(full_kinds)]
        if without:
            wanted.append(tuple_(LoggerRow.job_id, LoggerRow.number).not_in(without))
        columns = (LoggerRow.job_id, LoggerRow.number, LoggerRow.kind, LoggerRow.next_turn_at)
        due = select(*columns, JobRow.owner, place.label("place")).where(*wanted).subquery().c
        query = select(due.job_id, due.number, due.kind, due.owner).where(due.place <= per_owner)
        oldest_first = query.order_by(due.next_turn_at, due.job_id, due.number).limit(MAX_DUE)
        with self._database.read() as session:
            return [
                DueLogger(key=(job_id, number), kind=kind, owner=owner or "")
                for job_id, number, kind, owner in session.execute(oldest_first)
            ]

    def claim(
        self, key: LoggerKey, *, is_held: Callable[[JobRow, int], bool] | None = None
    ) -> ClaimedTurn | None:
        """Claim a turn of a logger, and read what it sends; None if it is not due any more.

        Args:
            key: the logger.
            is_held: tells of a job and the number of a logger whether it sends no epochs yet.
        """
        now = self._clock()
        with self._database.write() as session:
            query = select(LoggerRow).where(*_is_logger(key), LoggerRow.next_turn_at <= now)
            row = session.scalar(query.with_for_update(skip_locked=True))
            if row is None:
                return None
            row.version, row.next_turn_at = row.version + 1, now + CLAIM_S
        sent = EpochPosition(attempt=row.attempt, generation=row.generation, epoch=row.epoch)
        place = (EpochRow.attempt, EpochRow.generation, EpochRow.epoch)
        after = tuple_(*place) > (sent.attempt, sent.generation, sent.epoch)
        epochs = select(EpochRow).where(EpochRow.job_id == row.job_id, after).order_by(*place)
        with self._database.read() as session:
            # The job first: what it stored later is a reason for another turn.
            job = session.get_one(JobRow, row.job_id)
            is_read = is_held is None or not is_held(job, row.number)
            found = list(session.scalars(epochs.limit(MAX_EPOCHS + 1))) if is_read else []
        return ClaimedTurn(
            key=key,
            version=row.version,
            failures=row.failures,
            sent=sent,
            run_id=row.run_id,
            location=row.location,
            job=job,
            epochs=found[:MAX_EPOCHS],
            has_more=len(found) > MAX_EPOCHS,
        )

    def record_success(self, turn: ClaimedTurn, outcome: TurnOutcome) -> bool:
        """Record what was sent; return whether the claim was still valid."""
        now = self._clock()
        return self._update(
            turn,
            **asdict(outcome.sent),
            state=outcome.state.value,
            run_id=outcome.run_id,
            location=outcome.location,
            message="",
            failures=0,
            sent_at=now,
            seen_generation=turn.job.cursor_generation,
            seen_seq=-1 if turn.has_more else turn.job.cursor_seq,
            next_turn_at=None if outcome.next_s is None else now + outcome.next_s,
        )

    def record_failure(
        self, turn: ClaimedTurn, message: str, *, state: LoggerState, next_s: float | None
    ) -> bool:
        """Record why a turn failed; return whether the claim was still valid."""
        return self._update(
            turn,
            state=state.value,
            message=message,
            failures=turn.failures + 1,
            next_turn_at=None if next_s is None else self._clock() + next_s,
        )

    def _update(self, turn: ClaimedTurn, **values: str | float | None) -> bool:
        claimed = (*_is_logger(turn.key), LoggerRow.version == turn.version)
        with self._database.write() as session:
            done = session.execute(update(LoggerRow).where(*claimed).values(**values))
            return isinstance(done, CursorResult) and done.rowcount == 1


def _is_logger(key: LoggerKey) -> tuple[ColumnElement[bool], ...]:
    return (LoggerRow.job_id == key[0], LoggerRow.number == key[1])


def _is_due(now: float) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions under which a logger is served, and that join it with its job."""
    disabled = select(UserRow.name).where(
        UserRow.name == JobRow.owner, UserRow.disabled_at.is_not(None)
    )
    return (
        LoggerRow.next_turn_at <= now,
        JobRow.id == LoggerRow.job_id,
        or_(
            JobRow.cursor_seq != LoggerRow.seen_seq,
            JobRow.cursor_generation != LoggerRow.seen_generation,
            JobRow.status.in_([status.value for status in ENDED]),
        ),
        ~disabled.correlate(JobRow).exists(),
    )


__all__ = ["ClaimedTurn", "DueLogger", "LoggerKey", "LoggerQueue", "TurnOutcome"]
