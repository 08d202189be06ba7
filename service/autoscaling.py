"""Asks the cluster's autoscaler for nodes on which queued jobs could start.

Ray's autoscaler sees only processes that wait for a node, and a job has none before it is admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import structlog

from service.domain.jobs import Reason
from service.domain.resources import Resources, list_worker_resources
from service.queue_inputs import QueueReader
from service.runtime.protocol import Runtime
from service.settings import Settings
from service.store.models import JobRow
from service.store.repository import Repository
from service.store.stored_spec import resource_request

MAX_WORKERS = 1000
"""Workers in one request; those of the first jobs in the queue."""
REPEAT_S = 60.0
"""How often an unchanged request is repeated: a cluster that was restarted does not have it."""
_log = structlog.get_logger()


class CapacityRequests:
    """Requests the workers that jobs hold, and the fewest that each queued job needs.

    Ray counts a request from the empty cluster on, and keeps it until the next one.
    """

    def __init__(
        self,
        repository: Repository,
        runtime: Runtime,
        settings: Settings,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._repository = repository
        self._runtime = runtime
        self._settings = settings
        self._monotonic = monotonic
        self._requested: list[Resources] = []
        self._requested_at: float | None = None

    def update(self) -> None:
        """Request what is needed now, if it changed or was requested a while ago.

        Raises:
            RuntimeUnavailable: the cluster does not answer.
        """
        if not self._settings.request_nodes:
            return
        needed = self._list_needed()
        if needed == self._requested and not (needed and self._is_old()):
            return
        self._runtime.request_capacity(needed)
        if len(needed) != len(self._requested):
            _log.info("nodes requested", workers=len(needed))
        self._requested, self._requested_at = needed, self._monotonic()

    def _is_old(self) -> bool:
        at = self._requested_at
        return at is None or self._monotonic() - at >= REPEAT_S

    def _list_needed(self) -> list[Resources]:
        """List the workers to request; none if no job waits, so that idle nodes may go."""
        queue = QueueReader(self._repository, self._settings).read_queue()
        waiting = [job for job in queue if job.reason != Reason.WAITING_FOR_QUOTA]
        if not waiting:
            return []
        return list(islice(_list_workers(self._repository.allocated(), waiting), MAX_WORKERS))


def _list_workers(allocated: Sequence[JobRow], waiting: Sequence[JobRow]) -> Iterator[Resources]:
    for job in allocated:
        yield from list_worker_resources(resource_request(job), job.workers)
    for job in waiting:
        yield from list_worker_resources(resource_request(job), job.min_workers)
