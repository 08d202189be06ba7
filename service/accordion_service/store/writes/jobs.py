"""Submits jobs, each in one transaction."""

from __future__ import annotations

from collections.abc import Mapping

import uuid_utils
from sqlalchemy.exc import IntegrityError

from accordion_service.domain.audit import AuditAction
from accordion_service.domain.capacity.waiting_message import WAITS_FOR_SCHEDULER, format_start
from accordion_service.domain.jobs.statuses import Desired, Reason, Status
from accordion_service.store.engine.events import FIRST_EVENT
from accordion_service.store.reads.time_limits import time_out_at
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_spec import extract_filter_values
from accordion_service.store.writes.caller_writes import CallerWrites
from accordion_service.store.writes.idempotency import Idempotency, find_replay, store_key
from accordion_service.store.writes.loggers import add_loggers
from accordion_service.store.writes.secret_refs import (
    locate_env_secrets,
    locate_logger_secrets,
    lock_secrets,
)
from accordion_service.store.writes.status_changes import record_first_status
from accordion_workers.records.contract import JobSpec

_MAX_TASK_IN_NAME = 56
"""Characters of the task name in a generated job name, which stays within the limit of 63."""


class JobSubmission(CallerWrites):
    """Submits the jobs of a caller."""

    def submit(
        self,
        spec: JobSpec,
        idempotency: Idempotency | None,
        *,
        cloned_from: str | None = None,
        place: str = "",
    ) -> tuple[JobRow, bool]:
        """Create a job, or find the one that the key created before (then the second value is
        True).

        Args:
            spec: what the job does.
            idempotency: key of the request, if it has one.
            cloned_from: ID of the job whose spec it was made from.
            place: JSON pointer to the spec in the body.

        Raises:
            Invalid: the key was used with another body, or the caller lacks a secret that the spec
                refers to.
        """
        needed = locate_env_secrets(spec, f"{place}/env")
        needed |= locate_logger_secrets(spec, f"{place}/loggers")
        try:
            return self._submit(spec, idempotency, cloned_from, secrets=needed)
        except IntegrityError:
            # PostgreSQL runs writers concurrently: another one stored the key meanwhile, and it is
            # now visible.
            return self._submit(spec, idempotency, cloned_from, secrets=needed)

    def find_replay(self, idempotency: Idempotency | None) -> JobRow | None:
        """Return the job that the key created before; None if it created none.

        Raises:
            Invalid: the key was used with another body.
        """
        if idempotency is None:
            return None
        with self._database.read() as session:
            known = find_replay(session, idempotency)
            return None if known is None else session.get(JobRow, known)

    def _submit(
        self,
        spec: JobSpec,
        idempotency: Idempotency | None,
        cloned_from: str | None,
        *,
        secrets: Mapping[str, str],
    ) -> tuple[JobRow, bool]:
        now = self._clock()
        with self._database.write() as session:
            known = find_replay(session, idempotency)
            if known is not None:
                return session.get_one(JobRow, known), True
            lock_secrets(session, self._caller.user, secrets)
            job = _new_job(spec, self._caller.user, now)
            job.cloned_from = cloned_from
            session.add(job)
            session.flush()
            add_loggers(session, job, spec, now=now)
            record_first_status(session, job, now=now, by=self._caller.user)
            store_key(session, idempotency, job.id, now=now)
            after = {"name": job.name, "priority": job.priority}
            after |= {} if cloned_from is None else {"cloned_from": cloned_from}
            self._append_audit(session, AuditAction.JOB_SUBMITTED, job.id, after=after, now=now)
            return job, False


def _new_job(spec: JobSpec, owner: str, now: float) -> JobRow:
    job_id = str(uuid_utils.uuid7())
    start_at = None if spec.start_at is None else spec.start_at.timestamp()
    is_later = start_at is not None and start_at > now
    document = spec.model_dump(mode="json")
    job = JobRow(
        id=job_id,
        name=spec.name or f"{spec.task.name.rpartition(':')[2][:_MAX_TASK_IN_NAME]}-{job_id[-6:]}",
        owner=owner,
        status=Status.QUEUED.value,
        desired=Desired.RUN.value,
        desired_by=owner,
        reason=(Reason.SCHEDULED if is_later else Reason.SUBMITTED).value,
        message=format_start(start_at) if start_at and is_later else WAITS_FOR_SCHEDULER,
        start_at=start_at,
        queued_at=now,
        spec=document,
        **extract_filter_values(document),
        labels=dict(spec.labels),
        priority=spec.priority,
        min_workers=spec.workers.min,
        max_workers=spec.workers.max,
        event_seq=FIRST_EVENT,
        created_at=now,
    )
    job.times_out_at = time_out_at(job, now)
    return job
