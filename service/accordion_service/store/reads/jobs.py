"""Jobs: single ones, those that match a filter, those that have ended or not, and how many."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, false, func, select, union

from accordion_service.domain.jobs.status_table import UNFINISHED
from accordion_service.domain.jobs.statuses import Kind, Status
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.job_list import JobFilter, count_listed, read_page
from accordion_service.store.reads.rows import read_rows
from accordion_service.store.tables.models import DeletedJobRow, JobRow

_UNFINISHED_IDS = select(JobRow.id).where(JobRow.status.in_(UNFINISHED))
"""The statuses are listed, because an index serves `IN`, but not `NOT IN`."""
IS_UNFINISHED = JobRow.id.in_(_UNFINISHED_IDS)
"""Whether a job has not ended. With the statuses alone, SQLite reads all jobs as soon as it has
statistics, by which each status has many rows.
"""


@dataclass(frozen=True, slots=True)
class JobReads:
    """Reads jobs."""

    database: Database

    def get(self, job_id: str) -> JobRow | None:
        """One job."""
        with self.database.read() as session:
            return session.get(JobRow, job_id)

    def versions(self, job_ids: Collection[str]) -> dict[str, int]:
        """Versions of these jobs by id, in one query; a job without a row is missing."""
        with self.database.read() as session:
            rows = session.execute(select(JobRow.id, JobRow.version).where(JobRow.id.in_(job_ids)))
            return {str(job_id): int(version) for job_id, version in rows}

    def find(self, wanted: JobFilter) -> list[JobRow]:
        """Jobs that match the filter, newest first."""
        with self.database.read() as session:
            return read_page(session, wanted)

    def unfinished(self) -> list[JobRow]:
        """Jobs that have not ended, oldest first."""
        query = select(JobRow).where(IS_UNFINISHED)
        return read_rows(self.database, query.order_by(JobRow.created_at, JobRow.id))

    def unfinished_ids(self) -> set[str]:
        """Ids of the jobs that have not ended."""
        with self.database.read() as session:
            return set(session.scalars(_UNFINISHED_IDS))

    def shown(self, ended_after: float) -> list[JobRow]:
        """Jobs that have not ended, and those that ended at that time or later; oldest first."""
        # Each part has an index. With OR, or an order, SQLite would read all jobs.
        ids = union(_UNFINISHED_IDS, select(JobRow.id).where(JobRow.ended_at >= ended_after))
        found = read_rows(self.database, select(JobRow).where(JobRow.id.in_(ids)))
        return sorted(found, key=lambda row: (row.created_at, row.id))

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
            return read_rows(self.database, query.order_by(*oldest).limit(limit))
        query = query.where(_is_unarchived())
        rows = read_rows(self.database, query.order_by(*newest).offset(beyond).limit(limit))
        return rows[::-1]

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


def _is_unarchived() -> ColumnElement[bool]:
    """A condition that leads to no index: SQLite would prefer that to the one that is meant."""
    return func.coalesce(JobRow.archived, false()) == false()
