"""Ended jobs whose checkpoints are no longer kept, and the record of their removal."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select, update

from accordion_service.domain.audit import AuditAction
from accordion_service.domain.jobs.statuses import Kind
from accordion_service.store.engine.events import append_event
from accordion_service.store.tables.models import CheckpointRow, JobRow
from accordion_service.store.writes.audit import append_audit
from accordion_service.store.writes.caller_writes import CallerWrites


class ExpiredCheckpoints(CallerWrites):
    """Reads and marks jobs for a caller; `clock` returns seconds since 1970."""

    def list_due(
        self, *, ended_before: float, limit: int, without: Collection[str] = ()
    ) -> list[JobRow]:
        """Return the jobs that ended first, before a time, and that still have all checkpoints;
        those of a guest run belong to its script.
        """
        query = select(JobRow).where(
            JobRow.checkpoints_removed_at.is_(None),
            JobRow.ended_at < ended_before,
            JobRow.kind == Kind.JOB,
        )
        query = query.order_by(JobRow.ended_at).limit(limit + len(without))
        with self._database.read() as session:
            rows = session.scalars(query)
            return [row for row in rows if row.id not in without][:limit]

    def begin_removal(self, job: JobRow, *, kept: Collection[str]) -> bool:
        """Note that only these checkpoints of the job can be relied on from now on; False if the
        job was retried or deleted since it was read.

        A retry during the removal would otherwise wait for checkpoints that are gone.
        """
        with self._database.write() as session:
            row = session.get(JobRow, job.id, with_for_update=True)
            if row is None or row.ended_at != job.ended_at:
                return False
            gone = update(CheckpointRow).where(
                CheckpointRow.job_id == row.id,
                CheckpointRow.name.not_in(kept),
                CheckpointRow.removed_at.is_(None),
            )
            session.execute(gone.values(removed_at=self._clock()))
            return True

    def mark_removed(self, job: JobRow, *, kept: Collection[str], removed: Collection[str]) -> None:
        """Note that the removal is complete; with an event and an audit entry if checkpoints were
        removed.
        """
        now = self._clock()
        with self._database.write() as session:
            row = session.get(JobRow, job.id, with_for_update=True)
            if row is None or row.ended_at != job.ended_at:
                return
            row.version += 1
            row.checkpoints_removed_at = now
            if not removed:
                return
            data = {"removed": sorted(removed), "kept": sorted(kept)}
            append_event(session, row, "retention", data=data, now=now)
            append_audit(
                session,
                self._caller,
                AuditAction.JOB_CHECKPOINTS_REMOVED,
                subject=row.id,
                before={"checkpoints": sorted([*removed, *kept])},
                after={"checkpoints": sorted(kept)},
                now=now,
            )


__all__ = ["ExpiredCheckpoints"]
