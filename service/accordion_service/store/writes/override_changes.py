"""Reads and changes the statuses of a job's overrides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from accordion.base.messages import Ack
from accordion_service.domain.overrides.states import OverrideStatus
from accordion_service.store.engine.events import append_event
from accordion_service.store.tables.models import AckRow, JobRow, OverrideRow
from accordion_service.store.tables.stored_documents import override_columns


def load_override_statuses(
    session: Session, job: JobRow
) -> dict[str, tuple[OverrideRow, OverrideStatus]]:
    """Read all overrides of the job by id, in order of arrival."""
    rows = list(
        session.scalars(
            select(OverrideRow).where(OverrideRow.job_id == job.id).order_by(OverrideRow.number)
        )
    )
    acks: dict[str, list[Ack]] = {row.id: [] for row in rows}
    query = (
        select(AckRow).join(OverrideRow).where(OverrideRow.job_id == job.id).order_by(AckRow.rank)
    )
    for ack in session.scalars(query):
        acks[ack.override_id].append(Ack(rank=ack.rank, step=ack.step, digest=ack.digest))
    return {row.id: (row, _build_status(row, acks[row.id])) for row in rows}


def _build_status(row: OverrideRow, acks: list[Ack]) -> OverrideStatus:
    return OverrideStatus(
        id=row.id,
        number=row.number,
        target=row.target,  # type: ignore[arg-type]
        layers=tuple(override_columns(row)["layers"]),
        until=row.until,
        orders_version=row.orders_version,
        state=row.state,  # type: ignore[arg-type]
        message=row.message,
        epoch=row.epoch,
        step=row.step,
        world_size=row.world_size,
        acks=tuple(acks),
    )


def store_override_status(
    session: Session,
    job: JobRow,
    *,
    row: OverrideRow,
    old: OverrideStatus,
    new: OverrideStatus,
    now: float,
    by: str | None = None,
) -> None:
    """Store the changed override, and append an event; `by` is the user who changed it, if one
    did.
    """
    if old == new:
        return
    row.state, row.message = new.state, new.message
    row.epoch, row.step, row.world_size = new.epoch, new.step, new.world_size
    if new.step != old.step:
        row.applied_at = None if new.step is None else now
    if old.acks != new.acks:
        session.execute(delete(AckRow).where(AckRow.override_id == row.id))
        # If a rank answered twice, its last answer is kept; the message says so.
        by_rank = {ack.rank: ack for ack in new.acks}
        session.add_all(
            AckRow(override_id=row.id, rank=ack.rank, step=ack.step, digest=ack.digest)
            for ack in by_rank.values()
        )
    # Every switch is acknowledged again while the override is active: only visible changes are
    # events.
    if replace(old, acks=()) != replace(new, acks=()) or len(old.acks) != len(new.acks):
        append_event(session, job, "override", data=override_data(row, new), now=now, by=by)


def override_data(row: OverrideRow, status: OverrideStatus) -> dict[str, Any]:
    """Data of an override event."""
    return {
        "id": row.id,
        "number": row.number,
        "target": row.target,
        "level": row.level,
        "layers": row.layers,
        "apply_at": row.apply_at,
        "until": row.until,
        "reason": row.reason,
        "requested_by": row.requested_by,
        "state": status.state,
        "message": status.message,
        "epoch": status.epoch,
        "step": status.step,
        "world_size": status.world_size,
        "acks": len(status.acks),
    }
