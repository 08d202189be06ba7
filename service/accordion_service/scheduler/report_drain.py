"""Drains what running jobs report, and keeps it until it is in the database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress

import structlog

from accordion_service.domain.jobs.status_table import HELD
from accordion_service.domain.jobs.statuses import Kind, Reason, Status
from accordion_service.errors import RuntimeUnavailable
from accordion_service.runtime.protocol import Runtime, SupervisorState
from accordion_service.scheduler.pending_logs import PendingLogs
from accordion_service.scheduler.turn_logs import log_failure
from accordion_service.store.engine.database_errors import ErrorKind, classify_error
from accordion_service.store.ingest.record_ingest import (
    JobReport,
    cursor_of,
    has_new_data,
    record_position,
)
from accordion_service.store.ingest.report_writes import ReportWrites
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.leases import Lease, LeaseLost
from accordion_workers.records.contract import Cursor, Drained, EndRecord, PausedRecord

JOBS_PER_WRITE = 100
"""Jobs whose rows a transaction locks; requests that change them wait until it ends."""
MAX_ANSWERS = 4
"""Most answers of the Accordion actor in a turn, each with up to 1,000 records: jobs that it left
out come first in the next turn.
"""
_log = structlog.get_logger()


class ReportDrain:
    """Reports of all followed jobs, drained in one call per turn."""

    def __init__(
        self,
        runtime: Runtime,
        storage_of: Callable[[str], str],
        writes: ReportWrites,
        *,
        lease: Lease,
        clock: Callable[[], float],
    ) -> None:
        self._runtime = runtime
        self._storage_of = storage_of
        self._writes = writes
        self._lease = lease
        self._counts = lease.counts
        self._clock = clock
        self._unstored = PendingLogs()
        self._drained: dict[str, Drained] = {}
        """Reports drained in this turn and not processed yet, by job id."""
        self.answered: set[str] = set()
        """Ids of the jobs that the cluster answered for in this turn; of others nothing is known,
        such as the orders that it holds.
        """
        self._refused: set[str] = set()
        """Ids of the jobs whose last report was refused by itself: they are left out of batches."""

    def drain_all(self, jobs: Sequence[JobRow], supervisors: Mapping[str, SupervisorState]) -> None:
        """Drain the jobs that run in a few calls; a call per job saturates the Accordion actor at
        240 jobs.
        """
        cursors = {
            job.id: cursor_of(job) for job in jobs if _is_followed(job, supervisors.get(job.id))
        }
        for job in jobs:
            self._unstored.settle(job.id, job.log_number)
        for job_id, drained in self._drained.items():
            # Output is delivered only once; the job was not processed because the lease was lost.
            self._unstored.add(job_id, drained)
        self._drained = dict.fromkeys(cursors, Drained())
        found = self._drain_many(cursors)
        self._drained |= found
        self.answered = set(found)

    def _drain_many(self, cursors: Mapping[str, Cursor]) -> dict[str, Drained]:
        """Drain these jobs; a full answer leaves some out, which are drained with another one."""
        found: dict[str, Drained] = {}
        for _ in range(MAX_ANSWERS):
            left = {id_: cursor for id_, cursor in cursors.items() if id_ not in found}
            try:
                answer = self._runtime.drain_many(left) if left else {}
            except RuntimeUnavailable as error:
                _log.warning("cluster", error=str(error))
                break
            if not answer:
                break
            found |= answer
        return found

    def store_running(
        self,
        jobs: Iterable[JobRow],
        supervisors: Mapping[str, SupervisorState],
        token: int,
    ) -> None:
        """Store what jobs report that only train, many in a transaction; what cannot be stored so
        is left to `take`.

        Raises:
            LeaseLost: another scheduler has begun meanwhile.
        """
        waiting = [job for job in jobs if self._only_trains(job, supervisors.get(job.id))]
        for start in range(0, len(waiting), JOBS_PER_WRITE):
            # All batches together may take longer than the lease lasts.
            self._lease.keep(token)
            self._store_batch(waiting[start : start + JOBS_PER_WRITE], token)

    def _store_batch(self, jobs: Sequence[JobRow], token: int) -> None:
        reports = {job.id: self._unstored.add(job.id, self._drained[job.id]) for job in jobs}
        for job_id, report in reports.items():
            # `take` adds what is kept.
            self._drained[job_id] = report.model_copy(update={"logs": (), "logs_dropped": 0})
        try:
            stored = self._write(token, [(job, reports[job.id]) for job in jobs])
        except LeaseLost:
            raise
        except Exception as error:  # noqa: BLE001  # each job is tried by itself afterwards
            self._counts.count_error("job")
            log_failure("jobs", error, job_ids=[*reports])
            return
        for job_id in stored:
            self._drained[job_id] = Drained(orders_version=reports[job_id].orders_version)

    def _only_trains(self, job: JobRow, state: SupervisorState | None) -> bool:
        """Whether a job has new reports, and none that changes more than its history."""
        drained = self._drained.get(job.id)
        return (
            drained is not None
            and state is not None
            and job.kind == Kind.JOB
            and job.id not in self._refused
            and (job.status, job.reason) == (Status.RUNNING, Reason.TRAINING)
            and (state.attempt, state.phase, state.message) == (job.attempt, "running", "")
            and not any(isinstance(r.payload, EndRecord | PausedRecord) for r in drained.records)
            and has_new_data(job, drained)
        )

    def take(self, job: JobRow) -> Drained:
        """Return what the job reports, after the output that could not be stored the last time."""
        self._unstored.settle(job.id, job.log_number)
        drained = self._drained.pop(job.id, None)
        if drained is None:
            drained = self._runtime.drain(job.id, cursor_of(job))
            self.answered.add(job.id)
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

    def store(self, job: JobRow, token: int, drained: Drained) -> bool:
        """Store what `take` returned; False if the row of the job has changed, or is locked.

        Raises:
            LeaseLost: another scheduler has begun meanwhile.
        """
        job_id = job.id
        try:
            return bool(self._write(token, [(job, drained)]))
        except Exception as error:
            if classify_error(error) in {None, ErrorKind.OTHER}:
                self._refused.add(job_id)
            raise

    def _write(self, token: int, reports: Sequence[JobReport]) -> Set[str]:
        for job, _ in reports:
            self._unstored.note_write(job.id, job.log_number)
        try:
            stored = self._writes.ingest(token, reports)
        except LeaseLost:
            self._unstored.drop_notes(job.id for job, _ in reports)
            raise
        self._unstored.drop_notes(job.id for job, _ in reports)
        self._mark_stored(stored)
        return stored

    def mark_stored(self, job_id: str) -> None:
        """Forget what was kept of the job: it is in the database now."""
        self._mark_stored({job_id})

    def _mark_stored(self, job_ids: Set[str]) -> None:
        now = self._clock()
        self._counts.observe_delays(
            now - record.time for job_id in job_ids for record in self._unstored.get(job_id).records
        )
        for job_id in job_ids:
            self._unstored.forget(job_id)
        self._refused -= job_ids

    def keep_only(self, job_ids: Set[str]) -> None:
        """Forget what was kept of all other jobs."""
        self._unstored.keep_only(job_ids)
        self._refused &= job_ids


def _is_followed(job: JobRow, state: SupervisorState | None) -> bool:
    if job.kind == Kind.GUEST:
        return True
    runs = state is not None and state.attempt == job.attempt and state.phase != "ended"
    return runs and Status(job.status) not in HELD
