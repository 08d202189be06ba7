"""State of one API process: settings, database, feeds and limits on concurrent work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from anyio import CapacityLimiter, WouldBlock

from accordion_service.access.oidc_provider import OidcProvider
from accordion_service.api.feeds import FeedHub
from accordion_service.api.http_connections import OpenConnections
from accordion_service.api.request_times import RequestTimes
from accordion_service.errors import Unavailable
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.cluster import ClusterReads
from accordion_service.store.reads.history import HistoryReads
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.reads.overrides import OverrideReads
from accordion_service.store.reads.queue import QueueReads

Clock = Callable[[], float]
"""Seconds since 1970."""
NUM_WRITERS = 20
"""Maximum number of concurrent writing requests: half of AnyIO's 40 threads, so that reads always
find a free one.
"""
NUM_UPLOAD_CHECKS = 2
"""Maximum number of uploads checked concurrently; the others wait without holding a thread."""
NUM_MODEL_EXPORTS = 1
"""Maximum number of models exported concurrently: each takes up to twice the memory of the model
and its optimizer.
"""
MAX_WAITING_EXPORTS = 4
"""Maximum number of exports that wait for another one; more are refused."""
MAX_WAITING_REPORTS = 8
"""Maximum number of reports that wait while one is built; more are refused."""
_SLOT_WAIT_S = 10.0
"""Maximum wait for a write slot. A write takes milliseconds, so hundreds finish in this time."""


class WriteSlots:
    """Limits concurrent writing requests. A request that waits for a slot occupies no thread."""

    def __init__(self, *, num_slots: int = NUM_WRITERS, wait_s: float = _SLOT_WAIT_S) -> None:
        self._slots = asyncio.Semaphore(num_slots)
        self._wait_s = wait_s
        self.num_slots, self.num_used = num_slots, 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot inside the block.

        Raises:
            Unavailable: no slot became free in time.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable(
                f"{self.num_slots} requests are already writing to the database, and none finished"
                f" in {self._wait_s:g} s; try again in a moment"
            ) from None
        self.num_used += 1
        try:
            yield
        finally:
            self.num_used -= 1
            self._slots.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppState:
    """State of one API process, shared by its routes."""

    settings: Settings
    database: Database
    jobs: JobReads
    queue: QueueReads
    history: HistoryReads
    overrides: OverrideReads
    cluster: ClusterReads
    clock: Clock
    request_times: RequestTimes
    feeds: FeedHub
    cookie: str
    """Name of the session cookie."""
    oidc: OidcProvider | None = None
    """Provider through which users may log in; None if the settings name none."""
    monotonic: Clock = time.monotonic
    """Seconds that pass however the clock is set."""
    draining: threading.Event
    """Set when the process is asked to stop: writes are rejected, and streams end."""
    connections: OpenConnections = field(default_factory=OpenConnections)
    write_slots: WriteSlots = field(default_factory=WriteSlots)
    model_exports: CapacityLimiter = field(
        default_factory=lambda: CapacityLimiter(NUM_MODEL_EXPORTS)
    )
    export_places: CapacityLimiter = field(
        default_factory=lambda: CapacityLimiter(NUM_MODEL_EXPORTS + MAX_WAITING_EXPORTS)
    )
    """Places of the exports that run or wait."""
    report_builds: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))
    report_places: CapacityLimiter = field(
        default_factory=lambda: CapacityLimiter(1 + MAX_WAITING_REPORTS)
    )
    """Places of the reports that are built or wait."""
    upload_checks: CapacityLimiter = field(
        default_factory=lambda: CapacityLimiter(NUM_UPLOAD_CHECKS)
    )


@contextmanager
def hold_place(places: CapacityLimiter, refusal: str) -> Iterator[None]:
    """Hold one place inside the block.

    Raises:
        Unavailable: all are taken; the message is `refusal`.
    """
    try:
        places.acquire_nowait()
    except WouldBlock:
        raise Unavailable(refusal) from None
    try:
        yield
    finally:
        places.release()
