"""Adds overrides and cancels them, each in one transaction."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, get_args

import uuid_utils
from sqlalchemy.orm import Session

from accordion.base.messages import OptimizerTarget
from accordion.config import Config
from accordion.decide.override_levels import (
    resolve_batch,
    resolve_level,
    resolve_local_steps,
    resolve_optimizer,
)
from accordion.decide.overrides import check_interval, check_layers
from accordion_service.domain.audit import AuditAction
from accordion_service.domain.jobs.statuses import Desired, Kind
from accordion_service.domain.overrides import transitions
from accordion_service.domain.overrides.states import LIVE, OverrideStatus
from accordion_service.domain.overrides.validity import check_effect, invalid_fields
from accordion_service.errors import Conflict, Invalid, NotFound
from accordion_service.store.engine.events import append_event
from accordion_service.store.tables.models import JobRow, OverrideRow
from accordion_service.store.tables.stored_documents import layer_names, stored_progress
from accordion_service.store.tables.stored_spec import spec_of
from accordion_service.store.writes.caller_writes import CallerWrites
from accordion_service.store.writes.idempotency import Idempotency, find_replay, store_key
from accordion_service.store.writes.override_changes import (
    load_override_statuses,
    override_data,
    store_override_status,
)
from accordion_service.store.writes.steering import CheckJob, lock_job, raise_versions, refuse_ended
from accordion_workers.records.contract import JobSpec

MAX_OVERRIDES = 1000
"""Maximum overrides of a job in all states; they are sent to the workers in one message."""
_REFUSED_FOR_GUESTS = {
    "batch": "this is a guest run, and its batch belongs to its script; change the script",
    "local_steps": (
        "this is a guest run, whose workers exchange in every step; submit a job with local_steps"
    ),
    **dict.fromkeys(
        get_args(OptimizerTarget),
        "this is a guest run, whose script sets its optimizer; change the script",
    ),
}
"""Why the target of an override is refused for a guest run, by target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedOverride:
    """A requested override, checked for form only."""

    target: str
    level: Any
    layers: list[str]
    apply_at: str | int
    until: int | None
    reason: str


class JobOverrides(CallerWrites):
    """Changes the overrides of jobs for a caller."""

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
            self._append_audit(session, AuditAction.OVERRIDE_ADDED, job.id, after=after, now=now)
            return row, False

    def cancel_override(
        self, job_id: str, override_id: str, check: CheckJob, *, reason: str = ""
    ) -> OverrideRow:
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
            if old.state not in LIVE:
                raise Conflict(f"override #{old.number} is {old.state} already: {old.message}")
            raise_versions(job)
            job.orders_version += 1
            self._cancel_with_superseded(session, job, old, now=now, reason=reason)
            return row

    def _cancel_with_superseded(
        self, session: Session, job: JobRow, cancelled: OverrideStatus, *, now: float, reason: str
    ) -> None:
        found, by = load_override_statuses(session, job), self._caller.user
        for new in transitions.cancel_with_superseded(
            [old for _, old in found.values()], cancelled, layer_names(job), by=by, reason=reason
        ):
            row, old = found[new.id]
            if new == old:
                continue
            store_override_status(session, job, row=row, old=old, new=new, now=now, by=by)
            before = {"number": row.number, "level": row.level, "layers": row.layers}
            after = {"reason": reason} if reason else None
            action = AuditAction.OVERRIDE_CANCELLED
            self._append_audit(session, action, job.id, before=before, after=after, now=now)


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
    if is_guest and request.target in _REFUSED_FOR_GUESTS:
        raise Invalid(_REFUSED_FOR_GUESTS[request.target], "/target")
    progress, names = stored_progress(job), layer_names(job)
    epoch, epochs = progress["epoch"] if progress else 0, None if is_guest else spec.training.epochs
    config = spec.config()
    with invalid_fields():
        _check_level(request, config, spec, is_first=job.override_number == 0)
        check_interval(request.apply_at, request.until, epoch=epoch, epochs=epochs)
        if names:
            check_layers(request.layers, names)


def _check_level(
    request: RequestedOverride, config: Config, spec: JobSpec, *, is_first: bool
) -> None:
    match request.target:
        case "batch":
            minimum = spec.min_global_batch
            resolve_batch(request.level, request.layers, batch=config.batch, minimum=minimum)
        case "local_steps":
            resolve_local_steps(request.level, request.layers, local=config.local_steps)
        case "lr" | "weight_decay" | "clip_norm" as target:
            ranges = config.optimizer_ranges
            resolve_optimizer(target, request.level, request.layers, ranges=ranges)
        case _:
            level = resolve_level(request.level, config.ladder())
            if is_first:
                check_effect(level, config)


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
