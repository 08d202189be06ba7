"""Ended jobs whose events and output are no longer kept."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select

from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.history_limits import trim_ended


class ExpiredHistory:
    """Finds and trims jobs; `clock` returns seconds since 1970."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def list_due(self, *, ended_before: float, limit: int) -> list[str]:
        """Return the IDs of the jobs that ended first, before a time, and still have all that their
        limits allow.
        """
        query = select(JobRow.id).where(
            JobRow.history_removed_at.is_(None), JobRow.ended_at < ended_before
        )
        with self._database.read() as session:
            return list(session.scalars(query.order_by(JobRow.ended_at).limit(limit)))

    def trim_job(self, job_id: str, *, ended_before: float) -> bool:
        """Remove the oldest events and output of a job, as many as a transaction may; return
        whether more remain to be removed. A job that was retried since it was listed is left alone.
        """
        with self._database.write() as session:
            job = session.get(JobRow, job_id, with_for_update=True)
            if job is None or job.ended_at is None or job.ended_at >= ended_before:
                return False
            job.version += 1
            has_more = trim_ended(session, job)
            if not has_more:
                job.history_removed_at = self._clock()
            return has_more


__all__ = ["ExpiredHistory"]
