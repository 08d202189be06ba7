"""The cluster, the scheduler that uses it, and the installation whose jobs are on it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from accordion_service.domain.capacity.cluster_snapshot import list_unschedulable
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import ClusterRow, InstallationRow, LeaseRow

SCHEDULER_LEASE = "scheduler"


@dataclass(frozen=True, slots=True)
class ClusterReads:
    """Reads the cluster as the scheduler last saw it, and the scheduler's lease."""

    database: Database

    def get(self) -> ClusterRow | None:
        """The cluster as the scheduler last saw it; None before its first look."""
        with self.database.read() as session:
            return session.get(ClusterRow, 1)

    def unschedulable_nodes(self) -> tuple[str, ...]:
        """Ray's IDs of the nodes that are alive and on which no workers are placed, sorted."""
        row = self.get()
        return list_unschedulable(row.nodes if row else [])

    def heartbeat(self) -> float | None:
        """When a scheduler last renewed its lease, in seconds since 1970; None before the first."""
        lease = self.scheduler_lease()
        return lease.renewed_at if lease else None

    def scheduler_lease(self) -> LeaseRow | None:
        """Lease of the scheduler, with what schedulers counted; None before the first."""
        with self.database.read() as session:
            return session.get(LeaseRow, SCHEDULER_LEASE)

    def installation(self) -> str:
        """Id of this installation."""
        with self.database.read() as session:
            return session.scalars(select(InstallationRow.id)).one()
