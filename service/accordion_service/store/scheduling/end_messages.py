"""Messages of jobs whose workers have ended or paused."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from accordion_service.domain.jobs.statuses import Kind
from accordion_service.store.tables.models import EpochRow, JobRow
from accordion_service.store.tables.stored_spec import spec_value
from accordion_workers.records.contract import Drained, EndRecord, PausedRecord


def describe_end(session: Session, job: JobRow, end: EndRecord) -> str:
    """Describe the end of a job whose workers gave no message, once its records are stored."""
    if job.kind == Kind.GUEST:
        return (
            "its script ended"
            if end.status == "SUCCEEDED"
            else "its script ended without a message"
        )
    if end.status == "SUCCEEDED":
        epochs = spec_value(job, "training.epochs", 0)
        newest = session.scalar(select(func.max(EpochRow.epoch)).where(EpochRow.job_id == job.id))
        trained = 0 if newest is None else newest + 1
        if trained < epochs:
            return f"its script ended after {trained} of {epochs} epochs"
        return f"all {epochs} epochs are trained" if epochs else "all epochs are trained"
    return "it ended without a message; its logs say more"


def describe_pause(drained: Drained) -> str:
    """Describe how much of the work is saved."""
    pauses = [
        record.payload for record in drained.records if isinstance(record.payload, PausedRecord)
    ]
    step, saved = (pauses[-1].step, pauses[-1].saved_step) if pauses else (None, None)
    if saved == 0:
        return "paused before its first checkpoint"
    if step is None or saved is None or saved >= step:
        return "paused; its state is saved"
    return (
        f"paused after {step} steps; its newest checkpoint has {saved} of them, the rest is trained"
        " again"
    )
