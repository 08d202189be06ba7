"""Reads what the rules of the queue need from the database, for the scheduler and the api."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from accordion_service.domain.capacity.allocation import build_allocated_job
from accordion_service.domain.capacity.queue import AllocatedJob, PendingJob, QueueRules
from accordion_service.domain.capacity.resources import ResourceRequest
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.queue import QueueReads
from accordion_service.store.reads.quotas import read_quotas
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_documents import stored_labels
from accordion_service.store.tables.stored_spec import resource_request

_HOUR_S = 3600.0


def is_contending(job: JobRow) -> bool:
    """Return whether a queued job waits for capacity or quota. Otherwise others start as if it were
    not there.
    """
    return job.reason != Reason.WAITING_FOR_SECRET


class QueueReader:
    """Reads the queue with the quotas and settings of one moment; `avoided` are the nodes on which
    workers of a job cannot start for now, by job id.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        awaiting_nodes: frozenset[str] = frozenset(),
        *,
        avoided: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        self._queue = QueueReads(database)
        self._avoided = avoided or {}
        self._points_per_s = settings.priority_per_hour / _HOUR_S
        self.rules = QueueRules(
            quotas=read_quotas(database),
            may_pause=settings.preempt_for_priority,
            awaiting_nodes=awaiting_nodes,
        )

    def read_queue(self) -> list[JobRow]:
        """Return the queued jobs in the order of the queue."""
        return self._queue.waiting(self._points_per_s)

    def read_contenders(self) -> list[JobRow]:
        """Return the queued jobs that need nothing but capacity and quota, in the same order."""
        return [row for row in self.read_queue() if is_contending(row)]

    def compute_rank(self, priority: int, queued_at: float) -> float:
        """Return the rank of a job in the order of the queue. Every job gains alike with time, so
        ranks do not depend on the present time.
        """
        return priority - queued_at * self._points_per_s

    def _request_of(self, row: JobRow) -> ResourceRequest:
        """Return what a job needs, and on which nodes its workers cannot start for now."""
        request, avoid = resource_request(row), self._avoided.get(row.id)
        return replace(request, avoid=avoid) if avoid else request

    def _rank_of(self, row: JobRow) -> float:
        return self.compute_rank(row.priority, row.queued_at)

    def list_pending(self, rows: Sequence[JobRow]) -> list[PendingJob]:
        """Return queued jobs as the rules see them, in their order."""
        return [
            PendingJob(
                id=row.id,
                request=self._request_of(row),
                priority=row.priority,
                rank=self._rank_of(row),
                accounts=self.rules.quotas.list_accounts(row.owner, stored_labels(row)),
            )
            for row in rows
        ]

    def list_allocated(
        self,
        rows: Sequence[JobRow],
        nodes_of: Callable[[JobRow], Sequence[str] | None] = lambda _: None,
    ) -> list[AllocatedJob]:
        """Return jobs that hold workers as the rules see them, in their order; `nodes_of` are the
        nodes of a job's placed processes, None if unknown.
        """
        return [
            build_allocated_job(
                row.id,
                Status(row.status),
                self._request_of(row),
                allocated_workers=row.workers,
                placed=nodes_of(row),
                priority=row.priority,
                rank=self._rank_of(row),
                accounts=self.rules.quotas.list_accounts(row.owner, stored_labels(row)),
            )
            for row in rows
        ]
