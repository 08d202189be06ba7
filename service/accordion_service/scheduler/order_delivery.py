"""Delivers the desired state of running jobs to the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from accordion_service.runtime.protocol import Runtime
from accordion_service.store.engine.database import Database
from accordion_service.store.scheduling.desired_state import read_desired_state
from accordion_service.store.scheduling.scheduler_writes import SchedulerWrites
from accordion_service.store.tables.models import JobRow


@dataclass(frozen=True, slots=True)
class OrderDelivery:
    """Sends orders until the cluster holds the newest version of them."""

    runtime: Runtime
    database: Database
    writes: SchedulerWrites

    def deliver(self, job: JobRow, held: int, token: int) -> None:
        """Send the job's orders unless version `held` is the newest; an actor that restarts has
        lost them.

        Raises:
            RuntimeUnavailable: the cluster does not answer.
        """
        if held < job.orders_version and not self.runtime.send_orders(
            job.id, read_desired_state(self.database, job)
        ):
            return
        if job.orders_confirmed < job.orders_version:
            self.writes.confirm_orders(job, token, job.orders_version)
