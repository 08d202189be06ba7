"""Desired state of a running job, which the scheduler sends to the cluster as its orders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from accordion.base.messages import Override
from accordion_service.domain.jobs.statuses import Status
from accordion_service.domain.overrides.states import ORDERED
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.cluster import ClusterReads
from accordion_service.store.reads.overrides import OverrideReads
from accordion_service.store.tables.models import JobRow, OverrideRow
from accordion_service.store.tables.stored_documents import is_override_readable
from accordion_workers.records.contract import DesiredState, Size

_STOPS: Mapping[Status, Literal["cancel", "pause"]] = {
    Status.STOPPING: "cancel",
    Status.PAUSING: "pause",
}
"""Desired state of an attempt; an attempt that is resumed while it pauses still ends, and the next
one continues.
"""


def read_desired_state(database: Database, job: JobRow) -> DesiredState:
    """Return the desired state of a job according to its row and its overrides."""
    rows = [row for row in OverrideReads(database).list_all(job.id) if row.state in ORDERED]
    ordered = [_build_override(row) for row in rows if is_override_readable(row)]
    return DesiredState(
        version=job.orders_version,
        overrides=tuple(ordered),
        stop=_STOPS.get(Status(job.status)),
        size=_group_size(job),
        avoid=ClusterReads(database).unschedulable_nodes(),
    )


def _group_size(job: JobRow) -> Size | None:
    """Allocation and limits for the workers; a minimum above the allocation does not block
    training.
    """
    return Size(min=min(job.min_workers, job.workers), target=job.workers) if job.workers else None


def _build_override(row: OverrideRow) -> Override:
    return Override(
        id=row.id,
        level=row.level,
        target=row.target,  # type: ignore[arg-type]
        layers=tuple(row.layers),
        apply_at=row.apply_at,
        until=row.until,
        reason=row.reason,
        number=row.number,
    )
