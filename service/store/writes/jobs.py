"""Submits jobs, adds overrides and cancels them, each in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import uuid_utils
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from accordion.overrides import check_interval, check_layers, resolve_batch, resolve_level
from service.domain import overrides
from service.domain.access import Caller
from service.domain.audit_actions import AuditAction
from service.domain.jobs import Desired, Kind, Reason, Status
from service.domain.override_checks import check_effect, invalid_fields
from service.domain.override_status import OverrideStatus
from service.domain.waiting_message import WAITS_FOR_SCHEDULER, format_start
from service.errors import Conflict, Invalid, NotFound
from service.store.audit_log import append_audit
from service.store.database import Database
from service.store.events import FIRST_EVENT, append_event
from service.store.idempotency import Idempotency, find_replay, store_key
from service.store.job_lifecycle import CheckJob, lock_job, raise_versions, refuse_ended
from service.store.job_time import time_out_at
from service.store.logger_rows import add_loggers
from service.store.models import JobRow, OverrideRow
from service.store.override_changes import (
    load_override_statuses,
    override_data,
    store_override_status,
)
from service.store.secret_refs import locate_env_secrets, locate_logger_secrets, lock_secrets
from service.store.status_changes import record_first_status
from service.store.stored_documents import layer_names, stored_progress
from service.store.stored_spec import extract_filter_values, spec_of
from workers.contract import JobSpec

MAX_OVERRIDES = 1000
"""Maximum overrides of a job in all states; they are sent to the workers in one message."""

_MAX_TASK_IN_NAME = 56
"""Characters of the task name in a generated job name, which stays within the limit of 63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedOverride:
    """A requested override, checked for form only."""

    target: str
    level: Any
    layers: list[str]
    apply_at: str | int
    until: int | None
    reason: str


class JobSubmission:
    """Writes the requests of a caller."""

    def __init__(self, database: Database, clock: Callable[[], float], caller: Caller) -> None:
        self._database = database
        self._clock = clock
        self._caller = caller

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
            append_audit(
                session,
                self._caller,
                AuditAction.JOB_SUBMITTED,
                subject=job.id,
                after=after,
                now=now,
            )
            return job, False

    def add_override(
        self,
        job_id: str,
        request: RequestedOverride,
        *,
        check: CheckJob,
        idempotency: Idempotency | None,
    ) -> tuple[OverrideRow, bool]:
        """Create an override, or find the one that the key created before (then the second value is
        True).

        Raises:
            NotFound: there is no such job.
            Conflict: it has ended, is being cancelled, or holds too many overrides.
            Invalid: the job does not support the override.
        """
        now = self._clock()
        with self._database.write() as session:
            job = lock_job(session, job_id, self._caller)
            known = find_replay(session, idempotency)
            if known is not None:
                return session.get_one(OverrideRow, known), True
            check(job)
            _check_override(job, request)
            raise_versions(job)
            job.orders_version += 1
            job.override_number += 1
            row = _new_override(job, request, self._caller.user, now=now)
            session.add(row)
            session.flush()
            data = override_data(row, load_override_statuses(session, job)[row.id][1])
            append_event(session, job, "override", data=data, now=now, by=self._caller.user)
            store_key(session, idempotency, row.id, now=now)
            after = asdict(request) | {"number": row.number}
            append_audit(
                session,
                self._caller,
                AuditAction.OVERRIDE_ADDED,
                subject=job.id,
                after=after,
                now=now,
            )
            return row, False

    def cancel_override(self, job_id: str, override_id: str, check: CheckJob) -> OverrideRow:
        """Cancel an override; one that has ended does not change.

        Raises:
            NotFound: there is no such job or override.
            Conflict: the override is over already, and was not cancelled.
        """
        now = self._clock()
        with self._database.write() as session:
            job = lock_job(session, job_id, self._caller)
            found = load_override_statuses(session, job).get(override_id)
            if found is None:
                raise NotFound(
                    f"job {job_id} has no override {override_id}; GET .../overrides lists all"
                )
            row, old = found
            if old.state == "CANCELLED":
                return row
            check(job)
            if overrides.cancel(old, by=self._caller.user) == old:
                raise Conflict(f"override #{old.number} is {old.state} already: {old.message}")
            raise_versions(job)
            job.orders_version += 1
            _cancel_with_superseded(session, job, old, now=now, by=self._caller.user)
            before = {"number": row.number, "level": row.level, "layers": row.layers}
            append_audit(
                session,
                self._caller,
                AuditAction.OVERRIDE_CANCELLED,
                subject=job.id,
                before=before,
                now=now,
            )
            return row


def _cancel_with_superseded(
    session: Session, job: JobRow, cancelled: OverrideStatus, *, now: float, by: str
) -> None:
    found = load_override_statuses(session, job)
    for new in overrides.cancel_with_superseded(
        [old for _, old in found.values()], cancelled, layer_names(job), by=by
    ):
        row, old = found[new.id]
        store_override_status(session, job, row=row, old=old, new=new, now=now, by=by)


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


def _check_override(job: JobRow, request: RequestedOverride) -> None:
    refuse_ended(job, "overridden")
    if job.desired == Desired.CANCEL:
        raise Conflict(f"job {job.id} is being cancelled and cannot be overridden any more")
    if job.override_number >= MAX_OVERRIDES:
        raise Conflict(
            f"job {job.id} has had {job.override_number} overrides, the limit is {MAX_OVERRIDES};"
            " submit a new job"
        )
    spec = spec_of(job)
    is_guest = job.kind == Kind.GUEST
    if request.target == "batch" and is_guest and spec.batch is None:
        raise Invalid(
            "this is a guest run, and its batch belongs to its script; change the script", "/target"
        )
    progress, names = stored_progress(job), layer_names(job)
    epoch, epochs = progress["epoch"] if progress else 0, None if is_guest else spec.training.epochs
    config = spec.config()
    with invalid_fields():
        if request.target == "batch":
            resolve_batch(
                request.level, request.layers, batch=config.batch, minimum=spec.min_global_batch
            )
        else:
            level = resolve_level(request.level, config.ladder())
            if job.override_number == 0:
                check_effect(level, config)
        check_interval(request.apply_at, request.until, epoch=epoch, epochs=epochs)
        if names:
            check_layers(request.layers, names)


def _new_override(job: JobRow, request: RequestedOverride, user: str, *, now: float) -> OverrideRow:
    return OverrideRow(
        id=str(uuid_utils.uuid7()),
        job_id=job.id,
        number=job.override_number,
        target=request.target,
        level=request.level,
        layers=request.layers,
        apply_at=request.apply_at,
        until=request.until,
        reason=request.reason,
        requested_by=user,
        orders_version=job.orders_version,
        state="PENDING",
        message="waits to be sent to the workers",
        created_at=now,
    )
