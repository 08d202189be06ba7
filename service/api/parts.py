"""What one api process is made of."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from anyio import CapacityLimiter

from service.api.feeds import FeedHub
from service.errors import Unavailable
from service.request_times import RequestTimes
from service.settings import Settings
from service.store.engine import Database
from service.store.repository import Repository

Clock = Callable[[], float]
"""Seconds since 1970."""
NUM_WRITERS = 20
"""Requests that may write at a time: half of the 40 threads that AnyIO gives to routes, so that
readers have theirs.
"""
NUM_UPLOAD_CHECKS = 2
"""Maximum number of uploads checked concurrently; the others wait without holding a thread."""
_PLACE_WAIT_S = 10.0
"""A write takes milliseconds, so hundreds have had their turn by then."""


class Writers:
    """Places for requests that write; who waits for one holds no thread."""

    def __init__(self, *, num_places: int = NUM_WRITERS, wait_s: float = _PLACE_WAIT_S) -> None:
        self._places = asyncio.Semaphore(num_places)
        self._num_places, self._wait_s = num_places, wait_s

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Have a place inside the block.

        Raises:
            Unavailable: none became free in time.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                await self._places.acquire()
        except TimeoutError:
            raise Unavailable(
                f"{self._num_places} requests that write wait for the database already, and none"
                f" was done in {self._wait_s:g} s; try again in a moment"
            ) from None
        try:
            yield
        finally:
            self._places.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What one api process is made of."""

    settings: Settings
    database: Database
    repository: Repository
    clock: Clock
    request_times: RequestTimes
    feeds: FeedHub
    cookie: str
    """Name of the session cookie."""
    draining: threading.Event
    """Set when the process is asked to go: writes are refused, streams end."""
    writers: Writers = field(default_factory=Writers)
    upload_checks: CapacityLimiter = field(
        default_factory=lambda: CapacityLimiter(NUM_UPLOAD_CHECKS)
    )
