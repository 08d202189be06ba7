"""Rows of the jobs that have not ended, for a scheduler that looks at all of them in every turn."""

from __future__ import annotations

from collections.abc import Set

from sqlalchemy import Select, inspect, select
from sqlalchemy.orm import defer

from accordion_service.store.engine.database import Database
from accordion_service.store.reads.jobs import IS_UNFINISHED
from accordion_service.store.tables.models import JobRow

MAX_IDS_PER_QUERY = 1000
"""Changed rows from which on all are read: a statement has a limited number of parameters."""
_DEFERRED = (JobRow.layers, JobRow.storage, JobRow.ray_run, JobRow.tally)
"""Documents that are only shown, or that few reports need; an access loads them."""


class UnfinishedJobs:
    """The rows as one thread last read or wrote them. Every write to a job raises the version of
    its row, so only rows whose version has changed are read again.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._rows: dict[str, JobRow] = {}

    def list_all(self) -> list[JobRow]:
        """Jobs that have not ended, oldest first."""
        with self.database.read() as session:
            found = session.execute(select(JobRow.id, JobRow.version).where(IS_UNFINISHED))
            versions = dict(found.all())
            known = {
                job_id: row
                for job_id, row in self._rows.items()
                if job_id in versions and _version(row) == versions[job_id]
            }
            changed = versions.keys() - known.keys()
            read = session.scalars(_select_jobs(changed)).all() if changed else ()
        self._rows = known | {row.id: row for row in read}
        return sorted(self._rows.values(), key=lambda row: (row.created_at, row.id))

    def list_allocated(self) -> list[JobRow]:
        """Jobs that hold workers, in the order of priority and age."""
        rows = (row for row in self.list_all() if row.workers > 0)
        return sorted(rows, key=lambda row: (-row.priority, row.created_at, row.id))

    def forget_all(self) -> None:
        """Read all rows again the next time."""
        self._rows = {}


def _select_jobs(job_ids: Set[str]) -> Select[JobRow]:
    """Select unfinished jobs: those of the IDs, or all if there are many."""
    query = select(JobRow).where(IS_UNFINISHED)
    query = query.options(*(defer(column) for column in _DEFERRED))
    return query.where(JobRow.id.in_(job_ids)) if len(job_ids) < MAX_IDS_PER_QUERY else query


def _version(row: JobRow) -> int | None:
    """Return the version of a row; None if the transaction that changed it last has failed."""
    return inspect(row).dict.get("version")
