"""Deletes ended jobs with their history, and remembers them until their files are removed."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, select

from accordion_service.domain.audit import AuditAction
from accordion_service.domain.jobs.status_table import ENDED
from accordion_service.domain.jobs.statuses import Status
from accordion_service.errors import Conflict
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import (
    DeletedJobRow,
    DeliveryRow,
    IdempotencyRow,
    JobRow,
    OverrideRow,
)
from accordion_service.store.tables.stored_documents import stored_labels
from accordion_service.store.tables.stored_spec import spec_value
from accordion_service.store.writes.caller_writes import CallerWrites
from accordion_service.store.writes.nodes import blank_node_failures
from accordion_service.store.writes.steering import CheckJob, lock_job
from accordion_service.store.writes.webhook_messages import lock_deliveries


class JobDeletion(CallerWrites):
    """Deletes jobs for a caller."""

    def delete_job(self, job_id: str, check: CheckJob) -> JobRow:
        """Delete an ended job and all that the database has of it; return its row as it was.

        Raises:
            NotFound: there is no such job, or the caller may not see it.
            Forbidden: the caller may not change it.
            Conflict: it has not ended.
        """
        now = self._clock()
        with self._database.write() as session:
            job = lock_job(session, job_id, self._caller)
            check(job)
            if Status(job.status) not in ENDED:
                raise Conflict(f"job {job.id} is {job.status}; cancel it before you delete it")
            overrides = select(OverrideRow.id).where(OverrideRow.job_id == job.id)
            made = [job.id, *session.scalars(overrides)]
            # A repeated request with one of these keys would look for what is gone.
            session.execute(delete(IdempotencyRow).where(IdempotencyRow.answer_id.in_(made)))
            url = spec_value(job, "checkpoint.storage", "") or None
            session.add(DeletedJobRow(job_id=job.id, storage_url=url, deleted_at=now))
            before = {name: getattr(job, name) for name in ("name", "owner", "status")}
            before["labels"] = stored_labels(job)
            self._append_audit(session, AuditAction.JOB_DELETED, job.id, before=before, now=now)
            blank_node_failures(session, job.id)
            lock_deliveries(session, DeliveryRow.job_id == job.id)
            session.delete(job)
            return job


class DeletedJobs:
    """Deleted jobs whose files are still there."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list_oldest(self, limit: int, *, without: Collection[str] = ()) -> list[DeletedJobRow]:
        """Return the jobs that were deleted first, without these."""
        query = select(DeletedJobRow).order_by(DeletedJobRow.deleted_at, DeletedJobRow.job_id)
        with self._database.read() as session:
            rows = session.scalars(query.limit(limit + len(without)))
            return [row for row in rows if row.job_id not in without][:limit]

    def forget(self, job_id: str) -> None:
        """Forget a job whose files are removed."""
        with self._database.write() as session:
            session.execute(delete(DeletedJobRow).where(DeletedJobRow.job_id == job_id))
