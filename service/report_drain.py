"""Drains what running jobs report, and keeps it until it is in the database."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from contextlib import suppress

import structlog

from service.errors import RuntimeUnavailable
from service.pending_logs import PendingLogs
from service.runtime.protocol import Runtime
from service.store.models import JobRow
from service.store.record_ingest import cursor_of, record_position
from service.store.scheduler_counts import SchedulerCounts
from workers.contract import Cursor, Drained

_log = structlog.get_logger()


class ReportDrain:
    """Reports of all followed jobs, drained in one call per turn."""

    def __init__(
        self,
        runtime: Runtime,
        storage_of: Callable[[str], str],
        *,
        counts: SchedulerCounts,
        clock: Callable[[], float],
    ) -> None:
        self._runtime = runtime
        self._storage_of = storage_of
        self._counts = counts
        self._clock = clock
        self._unstored = PendingLogs()
        self._drained: dict[str, Drained] = {}
        """Reports drained in this turn and not processed yet, by job id."""
        self.answered: frozenset[str] = frozenset()
        """Ids of the jobs that the cluster answered for in this turn."""

    def drain_all(self, cursors: Mapping[str, Cursor]) -> None:
        """Drain these jobs in one call; a call per job saturates the Accordion actor at 240
        jobs.
        """
        for job_id, drained in self._drained.items():
            # Output is delivered only once; the job was not processed because the lease was lost.
            self._unstored.add(job_id, drained)
        self._drained = dict.fromkeys(cursors, Drained())
        self.answered = frozenset()
        if not cursors:
            return
        try:
            found = self._runtime.drain_many(cursors)
        except RuntimeUnavailable as error:
            _log.warning("cluster", error=str(error))
            return
        self._drained |= found
        self.answered = frozenset(found)

    def take(self, job: JobRow) -> Drained:
        """Return what the job reports, after the output that could not be stored the last time."""
        drained = self._drained.pop(job.id, None)
        if drained is None:
            drained = self._runtime.drain(job.id, cursor_of(job))
        return self._unstored.add(job.id, drained)

    def drain_final_logs(self, job: JobRow) -> None:
        """Fetch the output that the cluster forgets with the job; none if it is unreachable."""
        with suppress(RuntimeUnavailable):
            if job.id in self._drained:
                self.take(job)
            self.take(job)

    def unstored(self, job: JobRow) -> Drained:
        """Return what the job reported and the database does not hold."""
        return self._unstored.get(job.id)

    def history(self, job: JobRow) -> Drained:
        """Return all that is known of the job, with records from its storage that were lost."""
        kept = self.unstored(job)
        storage = self._storage_of(job.id)
        retried = job.retried_attempt or 0
        history = self._runtime.history(job.id, storage, retried_attempt=retried)
        records = {record_position(record): record for record in (*history.records, *kept.records)}
        return kept.model_copy(update={"records": tuple(records[key] for key in sorted(records))})

    def mark_stored(self, job_id: str) -> None:
        """Forget what was kept of the job: it is in the database now."""
        now = self._clock()
        self._counts.observe_delays(
            now - record.time for record in self._unstored.get(job_id).records
        )
        self._unstored.forget(job_id)

    def keep_only(self, job_ids: Container[str]) -> None:
        """Forget what was kept of all other jobs."""
        self._unstored.keep_only(job_ids)
