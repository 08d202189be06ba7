"""Archives ended jobs: lists leave them out, and nothing else changes."""

from __future__ import annotations

from sqlalchemy.orm import Session

from accordion_service.domain.audit import AuditAction
from accordion_service.domain.jobs.status_table import ENDED
from accordion_service.domain.jobs.statuses import Status
from accordion_service.errors import Conflict
from accordion_service.store.engine.events import append_event
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.caller_writes import CallerWrites
from accordion_service.store.writes.steering import CheckJob, lock_job, raise_versions


class JobArchive(CallerWrites):
    """Archives and unarchives jobs for a caller; repeating a request changes nothing.

    Raises (every method): NotFound, if there is no such job, or the caller may not see it;
    Forbidden, if the caller may not change it.
    """

    def archive(self, job_id: str, check: CheckJob) -> JobRow:
        """Archive an ended job or guest run.

        Raises:
            Conflict: it has not ended.
        """
        with self._database.write() as session:
            job = lock_job(session, job_id, self._caller)
            check(job)
            if Status(job.status) not in ENDED:
                raise Conflict(
                    f"job {job.id} is {job.status}; cancel it, or wait until it has ended, before"
                    " you archive it"
                )
            self._mark(session, job, archived=True)
            return job

    def unarchive(self, job_id: str, check: CheckJob) -> JobRow:
        """Unarchive a job: lists show it again."""
        with self._database.write() as session:
            job = lock_job(session, job_id, self._caller)
            check(job)
            self._mark(session, job, archived=False)
            return job

    def _mark(self, session: Session, job: JobRow, *, archived: bool) -> None:
        if job.archived == archived:
            return
        now = self._clock()
        raise_versions(job)
        job.archived = archived
        data = {"archived": archived}
        append_event(session, job, "archive", data=data, now=now, by=self._caller.user)
        action = AuditAction.JOB_ARCHIVED if archived else AuditAction.JOB_UNARCHIVED
        before = {"archived": not archived}
        self._append_audit(session, action, job.id, before=before, after=data, now=now)
