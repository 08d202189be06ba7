"""Writes what jobs report, of many jobs in one guarded transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
from sqlalchemy import select

from service.domain.job_status import ENDED
from service.store.database import Database
from service.store.history_limits import HistoryLimits, trim_history
from service.store.leases import is_newest_token
from service.store.models import JobRow
from service.store.record_ingest import ingest_records
from workers.contract import Drained

_log = structlog.get_logger()


class ReportWrites:
    """Writes of one scheduler, which check its lease like `SchedulerWrites`."""

    def __init__(
        self, database: Database, clock: Callable[[], float], limits: HistoryLimits
    ) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits

    def ingest(self, token: int, reports: Mapping[str, Drained]) -> frozenset[str]:
        """Store what running jobs reported, by id; return the ids whose reports are stored.

        It depends only on the cursors, which are read again, so a concurrent request loses no
        output.
        """
        now = self._clock()
        unfinished = select(JobRow).where(JobRow.id.in_(reports), JobRow.status.not_in(ENDED))
        with self._database.write() as session:
            # In one order, so that two transactions do not wait for each other.
            jobs = session.scalars(unfinished.order_by(JobRow.id).with_for_update()).all()
            is_mine = is_newest_token(session, token)
            stored = frozenset(job.id for job in jobs) if is_mine else frozenset()
            if len(stored) < len(reports):
                reason = "stale" if is_mine else "lease lost"
                _log.info("dropped", job_ids=sorted(reports.keys() - stored), reason=reason)
            if not stored:
                return stored
            ingest_records(session, [(job, reports[job.id]) for job in jobs], now=now)
            for job in jobs:
                job.version += 1
                trim_history(session, job, self._limits)
            return stored


__all__ = ["ReportWrites"]
