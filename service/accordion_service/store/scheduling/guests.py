"""Rows of guest runs: training that registered itself and holds no allocation of ours."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from accordion_service.domain.jobs.guests import name_guest
from accordion_service.domain.jobs.ray_run import RayRun
from accordion_service.domain.jobs.status_table import UNFINISHED
from accordion_service.domain.jobs.statuses import Desired, Kind, Reason, Status
from accordion_service.store.engine.events import FIRST_EVENT
from accordion_service.store.tables.models import AttemptRow, JobRow
from accordion_service.store.tables.stored_spec import extract_filter_values
from accordion_service.store.writes.status_changes import record_first_status
from accordion_workers.records.contract import GUEST_ATTEMPT, Guest

_MESSAGE = "registered by its Ray Train script; waits for its first report"


def insert_guest(session: Session, guest: Guest, *, now: float) -> None:
    """Insert the rows of a guest run that has none."""
    same_name = select(JobRow.name).where(JobRow.name == guest.name, JobRow.status.in_(UNFINISHED))
    job = JobRow(
        id=guest.job_id,
        name=name_guest(guest.name, guest.job_id, set(session.scalars(same_name))),
        kind=Kind.GUEST.value,
        status=Status.RUNNING.value,
        desired=Desired.RUN.value,
        reason=Reason.REGISTERED.value,
        message=_MESSAGE,
        labels=dict(guest.spec.labels),
        priority=guest.spec.priority,
        attempt=GUEST_ATTEMPT,
        event_seq=FIRST_EVENT,
        created_at=now,
        queued_at=now,
        **_guest_columns(guest),
    )
    session.add(job)
    session.flush()
    attempt = AttemptRow(
        job_id=job.id,
        number=GUEST_ATTEMPT,
        workers=0,
        reason=job.reason,
        message=_MESSAGE,
        created_at=now,
    )
    session.add(attempt)
    record_first_status(session, job, now=now)


def update_guest(job: JobRow, guest: Guest) -> None:
    """Store what a guest run registered with when its script was started again."""
    for name, value in _guest_columns(guest).items():
        setattr(job, name, value)


def _guest_columns(guest: Guest) -> dict[str, Any]:
    """Return the columns of what a guest run registered with, without unknown fields of its
    spec.
    """
    run = RayRun(engine="ray-train", train_run=guest.train_run, ray_job_id=guest.ray_job_id)
    document = guest.spec.model_dump(mode="json", exclude_unset=True)
    return {
        "spec": document,
        **extract_filter_values(document),
        "min_workers": guest.spec.workers.min,
        "max_workers": guest.spec.workers.max,
        "ray_run": asdict(run),
    }
