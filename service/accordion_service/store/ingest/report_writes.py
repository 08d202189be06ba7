"""Writes what jobs report, of many jobs in one guarded transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import structlog
from sqlalchemy import Select, inspect, select
from sqlalchemy.orm.attributes import flag_modified

from accordion_service.domain.jobs.status_table import ENDED
from accordion_service.store.engine.database import Database
from accordion_service.store.ingest.record_ingest import JobReport, ingest_records
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.history_limits import HistoryLimits, trim_history
from accordion_service.store.writes.leases import check_token

_OFTEN_CHANGED = (
    *("event_seq", "log_number", "log_bytes", "progress", "metrics"),
    *("cursor_attempt", "cursor_generation", "cursor_seq"),
)
"""Columns that reports of jobs change which train."""
_log = structlog.get_logger()


class ReportWrites:
    """Writes of one scheduler, which check its lease like `SchedulerWrites`."""

    def __init__(
        self, database: Database, clock: Callable[[], float], limits: HistoryLimits
    ) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits

    def ingest(self, token: int, reports: Sequence[JobReport]) -> frozenset[str]:
        """Store what running jobs reported since their rows were read; return the ids of those
        whose reports are stored. Jobs that have changed since are left out: they may have ended,
        and after a write that seemed to fail, their output may be stored.

        The rows are those of the caller. They hold what was stored, and if that fails, nothing.

        Raises:
            LeaseLost: another scheduler has begun meanwhile.
        """
        now = self._clock()
        with self._database.write() as session:
            locked = session.execute(_lock_unfinished([job.id for job, _ in reports]))
            versions = dict(locked.all())
            check_token(session, token)
            current = [
                (job, drained) for job, drained in reports if versions.get(job.id) == job.version
            ]
            jobs = [job for job, _ in current]
            if len(jobs) < len(reports):
                left_out = {job.id for job, _ in reports} - {job.id for job in jobs}
                _log.info("not stored", job_ids=sorted(left_out), reason="stale, or locked")
            session.add_all(jobs)
            for job in jobs:
                job.version += 1
            ingest_records(session, current, now=now)
            _write_same_columns(jobs)
            trim_history(session, jobs, self._limits)
            return frozenset(job.id for job in jobs)


def _write_same_columns(jobs: Iterable[JobRow]) -> None:
    """Have one statement write all of these rows: each set of changed columns needs its own."""
    for job in jobs:
        for name in inspect(job).unmodified_intersection(_OFTEN_CHANGED):
            if getattr(job, name) is not None:
                flag_modified(job, name)


def _lock_unfinished(job_ids: Collection[str]) -> Select[str, int]:
    """Select ids and versions of the jobs that have not ended, except those that another
    transaction has locked: one of them would keep the others waiting.
    """
    query = select(JobRow.id, JobRow.version)
    query = query.where(JobRow.id.in_(job_ids), JobRow.status.not_in(ENDED))
    # In one order, so that two transactions do not wait for each other.
    return query.order_by(JobRow.id).with_for_update(skip_locked=True)


__all__ = ["ReportWrites"]
