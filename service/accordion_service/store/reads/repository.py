"""Reads of the store: each method reads one snapshot; rows are detached and stay usable.

Requests of users are in `store/writes/`, what the scheduler writes is in `store/scheduling/`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import ColumnElement, Select, and_, false, func, select, tuple_, union
from sqlalchemy.orm import InstrumentedAttribute, Session, defer

from accordion_service.domain.capacity.cluster_snapshot import list_unschedulable
from accordion_service.domain.capacity.quotas import Quota, QuotaTable
from accordion_service.domain.capacity.waiting_message import WAITS_ITS_TURN
from accordion_service.domain.jobs.status_table import UNFINISHED
from accordion_service.domain.jobs.statuses import Kind, Reason, Status
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.jobs import JobFilter, count_listed, read_page
from accordion_service.store.tables.models import (
    AckRow,
    AttemptRow,
    CheckpointRow,
    ClusterRow,
    DecisionRow,
    DeletedJobRow,
    EpochRow,
    EventRow,
    InstallationRow,
    JobRow,
    LeaseRow,
    LogChunkRow,
    LoggerRow,
    OverrideRow,
    QuotaRow,
)

SCHEDULER_LEASE = "scheduler"
Row = TypeVar("Row")
_UNFINISHED_IDS = select(JobRow.id).where(JobRow.status.in_(UNFINISHED))
"""The statuses are listed, because an index serves `IN`, but not `NOT IN`."""
IS_UNFINISHED = JobRow.id.in_(_UNFINISHED_IDS)
"""Whether a job has not ended. With the statuses alone, SQLite reads all jobs as soon as it has
statistics, by which each status has many rows.
"""
_REPORTED = (
    JobRow.progress,
    JobRow.layers,
    JobRow.metrics,
    JobRow.storage,
    JobRow.ray_run,
    JobRow.packages,
    JobRow.tally,
)
"""Columns whose documents take longer to parse than all others of a job."""
_SCHEDULED = (
    select(JobRow)
    .where(JobRow.status == Status.QUEUED, JobRow.reason == Reason.SCHEDULED)
    .order_by(JobRow.start_at, JobRow.id)
)
"""Jobs that are queued at a later time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """Part of a history to read."""

    limit: int | None = None
    newest_first: bool = False
    beyond: tuple[int, ...] | None = None
    """Position of the last item of the previous page."""

    def cut(
        self, query: Select[Row], position: Sequence[InstrumentedAttribute[int]]
    ) -> Select[Row]:
        """Restrict and order a query; `position` are the columns that order it."""
        if self.beyond is not None:
            here, last = tuple_(*position), tuple_(*self.beyond)
            query = query.where(here < last if self.newest_first else here > last)
        return query.order_by(
            *(column.desc() if self.newest_first else column for column in position)
        ).limit(self.limit)


WHOLE_HISTORY = HistoryPage()


class Repository:
    """Reads rows of the store."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def job(self, job_id: str) -> JobRow | None:
        """One job."""
        with self.database.read() as session:
            return session.get(JobRow, job_id)

    def versions(self, job_ids: Collection[str]) -> dict[str, int]:
        """Versions of these jobs by id, in one query; a job without a row is missing."""
        with self.database.read() as session:
            rows = session.execute(select(JobRow.id, JobRow.version).where(JobRow.id.in_(job_ids)))
            return {str(job_id): int(version) for job_id, version in rows}

    def jobs(self, wanted: JobFilter) -> list[JobRow]:
        """Jobs that match the filter, newest first."""
        with self.database.read() as session:
            return read_page(session, wanted)

    def unfinished(self) -> list[JobRow]:
        """Jobs that have not ended, oldest first."""
        query = select(JobRow).where(IS_UNFINISHED)
        return self._all(query.order_by(JobRow.created_at, JobRow.id))

    def unfinished_ids(self) -> set[str]:
        """Ids of the jobs that have not ended."""
        with self.database.read() as session:
            return set(session.scalars(_UNFINISHED_IDS))

    def shown(self, ended_after: float) -> list[JobRow]:
        """Jobs that have not ended, and those that ended at that time or later; oldest first."""
        # Each part has an index. With OR, or an order, SQLite would read all jobs.
        ids = union(_UNFINISHED_IDS, select(JobRow.id).where(JobRow.ended_at >= ended_after))
        found = self._all(select(JobRow).where(JobRow.id.in_(ids)))
        return sorted(found, key=lambda row: (row.created_at, row.id))

    def queue(self, points_per_s: float = 0.0) -> list[JobRow]:
        """Waiting jobs whose time has come, in the order of the queue; each second since a job was
        queued raises its priority by so many points.
        """
        # Every job gains alike, so the order does not depend on the present time.
        rank = JobRow.priority - JobRow.queued_at * points_per_s
        query = select(JobRow).where(
            JobRow.status == Status.QUEUED, JobRow.reason != Reason.SCHEDULED
        )
        return self._all(query.order_by(rank.desc(), JobRow.created_at, JobRow.id))

    def scheduled(self) -> list[JobRow]:
        """Jobs that are queued at a later time, in the order of that time."""
        return self._all(_SCHEDULED)

    def due(self, now: float) -> list[JobRow]:
        """Jobs whose time to be queued has come, in seconds since 1970."""
        return self._all(_SCHEDULED.where(JobRow.start_at <= now))

    def first_without_capacity(self, rows: Sequence[JobRow]) -> str | None:
        """Id of the first queued job without capacity; None if none of these rows waits
        behind one.
        """
        if all(row.message != WAITS_ITS_TURN for row in rows):
            return None
        queue = select(JobRow.id).where(
            JobRow.status == Status.QUEUED,
            JobRow.reason == Reason.WAITING_FOR_ROOM,
            JobRow.message != WAITS_ITS_TURN,
        )
        return self._first(queue.order_by(JobRow.priority.desc(), JobRow.created_at, JobRow.id))

    def quotas(self) -> QuotaTable:
        """All quotas."""
        return QuotaTable(
            quotas={
                row.account: Quota(jobs=row.jobs, workers=row.workers, gpus=row.gpus)
                for row in self._all(select(QuotaRow).order_by(QuotaRow.account))
            }
        )

    def allocated(self) -> list[JobRow]:
        """Jobs that hold workers, in the order of priority and age, without what they reported."""
        query = select(JobRow).where(IS_UNFINISHED, JobRow.workers > 0)
        query = query.options(*(defer(column, raiseload=True) for column in _REPORTED))
        return self._all(query.order_by(JobRow.priority.desc(), JobRow.created_at, JobRow.id))

    def named_code(self) -> set[str]:
        """SHA-256 of every upload that a job names, the ended ones included: they may be submitted
        again.
        """
        named = JobRow.spec["code"].as_string()
        with self.database.read() as session:
            return {
                str(sha256)
                for sha256 in session.scalars(select(named).where(named.is_not(None)).distinct())
            }

    def count_by_status(self, kind: Kind = Kind.JOB) -> dict[str, int]:
        """Count jobs or guest runs by status, the ended ones included; a status without any
        is 0.
        """
        query = (
            select(JobRow.status, func.count()).where(JobRow.kind == kind).group_by(JobRow.status)
        )
        with self.database.read() as session:
            found = session.execute(query).all()
        return {status.value: 0 for status in Status} | {
            str(status): int(count) for status, count in found
        }

    def count_listed(self, visible_to: str | None) -> dict[Kind, dict[str, int]]:
        """Count jobs and guest runs by status, without archived ones and those that are not visible
        to a user; None for all. A status without any is 0.
        """
        with self.database.read() as session:
            found = count_listed(session, visible_to)
        return {
            kind: {status.value: found.get((kind.value, status.value), 0) for status in Status}
            for kind in Kind
        }

    def newest_attempts(self, job_ids: Collection[str]) -> dict[str, AttemptRow]:
        """The newest attempt of each of these jobs, by job id, in one query."""
        newest = and_(JobRow.id == AttemptRow.job_id, JobRow.attempt == AttemptRow.number)
        query = select(AttemptRow).join(JobRow, newest).where(JobRow.id.in_(job_ids))
        return {row.job_id: row for row in self._all(query)} if job_ids else {}

    def loggers(self, job_id: str) -> list[LoggerRow]:
        """Loggers of the job, in the order of its spec."""
        query = select(LoggerRow).where(LoggerRow.job_id == job_id).order_by(LoggerRow.number)
        return self._all(query)

    def attempts(self, job_id: str) -> list[AttemptRow]:
        """All attempts, oldest first."""
        return self._all(
            select(AttemptRow).where(AttemptRow.job_id == job_id).order_by(AttemptRow.number)
        )

    def epochs(self, job_id: str, page: HistoryPage = WHOLE_HISTORY) -> list[EpochRow]:
        """Finished epochs; the whole history, oldest first, by default."""
        query = select(EpochRow).where(EpochRow.job_id == job_id)
        return self._all(page.cut(query, [EpochRow.epoch]))

    def count_epochs(self, job_id: str) -> int:
        """Number of finished epochs."""
        with self.database.read() as session:
            return session.scalar(select(func.count()).where(EpochRow.job_id == job_id)) or 0

    def count_decisions(self, job_id: str) -> int:
        """Number of decisions."""
        with self.database.read() as session:
            return session.scalar(select(func.count()).where(DecisionRow.job_id == job_id)) or 0

    def decisions(self, job_id: str, page: HistoryPage = WHOLE_HISTORY) -> list[DecisionRow]:
        """Decisions; the whole history, oldest first, by default."""
        query = select(DecisionRow).where(DecisionRow.job_id == job_id)
        return self._all(page.cut(query, [DecisionRow.epoch, DecisionRow.step]))

    def newest_decision(self, job_id: str) -> DecisionRow | None:
        """The decision in force."""
        query = select(DecisionRow).where(DecisionRow.job_id == job_id)
        return self._first(query.order_by(DecisionRow.step.desc(), DecisionRow.epoch.desc()))

    def saved_step(self, job_id: str) -> int:
        """Steps that the newest checkpoint of the job holds; 0 without one, and if retention has
        removed them all.
        """
        newest = select(func.max(CheckpointRow.step)).where(
            CheckpointRow.job_id == job_id, CheckpointRow.removed_at.is_(None)
        )
        with self.database.read() as session:
            return session.scalar(newest) or 0

    def checkpoints(self, job_id: str) -> list[CheckpointRow]:
        """All checkpoints that were reported, oldest first."""
        query = select(CheckpointRow).where(CheckpointRow.job_id == job_id)
        return self._all(query.order_by(CheckpointRow.time, CheckpointRow.name))

    def overrides(self, job_id: str) -> list[OverrideRow]:
        """All overrides, oldest first."""
        return self._all(
            select(OverrideRow).where(OverrideRow.job_id == job_id).order_by(OverrideRow.number)
        )

    def override(self, job_id: str, override_id: str) -> OverrideRow | None:
        """One override of the job."""
        return self._first(
            select(OverrideRow).where(OverrideRow.job_id == job_id, OverrideRow.id == override_id)
        )

    def acks(self, job_id: str) -> dict[str, list[AckRow]]:
        """Acknowledgements by override id, in rank order."""
        query = (
            select(AckRow)
            .join(OverrideRow)
            .where(OverrideRow.job_id == job_id)
            .order_by(AckRow.rank)
        )
        by_override: dict[str, list[AckRow]] = {}
        for ack in self._all(query):
            by_override.setdefault(ack.override_id, []).append(ack)
        return by_override

    def events(self, job_id: str, *, after: int, limit: int = 500) -> list[EventRow]:
        """Events above that number, in order."""
        query = select(EventRow).where(EventRow.job_id == job_id, EventRow.seq > after)
        return self._all(query.order_by(EventRow.seq).limit(limit))

    def logs(self, job_id: str, *, after: int = 0, limit: int = 500) -> list[LogChunkRow]:
        """Chunks of log lines above that number, in order."""
        query = select(LogChunkRow).where(LogChunkRow.job_id == job_id, LogChunkRow.number > after)
        return self._all(query.order_by(LogChunkRow.number).limit(limit))

    def newest_logs(self, job_id: str, *, up_to: int, limit: int = 50) -> list[LogChunkRow]:
        """Chunks of log lines up to that number, the newest first."""
        query = select(LogChunkRow).where(LogChunkRow.job_id == job_id, LogChunkRow.number <= up_to)
        return self._all(query.order_by(LogChunkRow.number.desc()).limit(limit))

    def known(self, job_ids: Collection[str]) -> set[str]:
        """Subset of the ids that have a row, including ended jobs, and deleted ones whose files are
        still there.
        """
        if not job_ids:
            return set()
        kept = select(JobRow.id).where(JobRow.id.in_(job_ids))
        deleted = select(DeletedJobRow.job_id).where(DeletedJobRow.job_id.in_(job_ids))
        with self.database.read() as session:
            return {*session.scalars(kept), *session.scalars(deleted)}

    def ended(self, *, before: float | None = None, beyond: int = 0, limit: int) -> list[JobRow]:
        """Ended jobs, the oldest end first.

        Args:
            before: only those that ended before this time, in seconds since 1970.
            beyond: leave out so many that ended last, and all archived ones.
            limit: most jobs to return.
        """
        query = select(JobRow).where(JobRow.ended_at.is_not(None))
        if before is not None:
            query = query.where(JobRow.ended_at < before)
        newest = JobRow.ended_at.desc(), JobRow.id.desc()
        oldest = JobRow.ended_at, JobRow.id
        if not beyond:
            return self._all(query.order_by(*oldest).limit(limit))
        query = query.where(_is_unarchived())
        rows = self._all(query.order_by(*newest).offset(beyond).limit(limit))
        return rows[::-1]

    def installation(self) -> str:
        """Id of this installation."""
        with self.database.read() as session:
            return session.scalars(select(InstallationRow.id)).one()

    def cluster(self) -> ClusterRow | None:
        """The cluster as the scheduler last saw it; None before its first look."""
        with self.database.read() as session:
            return session.get(ClusterRow, 1)

    def unschedulable_nodes(self) -> tuple[str, ...]:
        """Ray's IDs of the nodes that are alive and on which no workers are placed, sorted."""
        row = self.cluster()
        return list_unschedulable(row.nodes if row else [])

    def heartbeat(self) -> float | None:
        """When a scheduler last renewed its lease, in seconds since 1970; None before the first."""
        lease = self.scheduler_lease()
        return lease.renewed_at if lease else None

    def scheduler_lease(self) -> LeaseRow | None:
        """Lease of the scheduler, with what schedulers counted; None before the first."""
        with self.database.read() as session:
            return session.get(LeaseRow, SCHEDULER_LEASE)

    def _all(self, query: Select[Row]) -> list[Row]:
        with self.database.read() as session:
            return _fetch_rows(session, query)

    def _first(self, query: Select[Row]) -> Row | None:
        with self.database.read() as session:
            return next(iter(_fetch_rows(session, query.limit(1))), None)


def _is_unarchived() -> ColumnElement[bool]:
    """A condition that leads to no index: SQLite would prefer that to the one that is meant."""
    return func.coalesce(JobRow.archived, false()) == false()


def _fetch_rows(session: Session, query: Select[Row]) -> list[Row]:
    return list(session.scalars(query))
