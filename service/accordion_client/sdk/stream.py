"""Server-sent events over lost connections: a reconnect sends the last number, so each event
arrives exactly once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx2
from pydantic import BaseModel

from accordion_client.sdk.answers import raise_for_status, translate_errors
from accordion_client.sdk.errors import ServiceFailed, Unreachable

SILENCE_S = 45.0
"""Read timeout: the service sends a comment every 15 s by default; without three of them the
connection is dead.
"""
STEADY_S = 5.0
"""Seconds after which a connection without events counts as working. Proxies that limit how long a
connection lasts allow it more; one that does not pass on streams closes it at once.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """How long a stream waits for an unreachable service, and by which clock a client waits."""

    patience_s: float = 60.0
    """Seconds from the first failed attempt to the last; a restarted service is back within
    seconds.
    """
    retry_s: float = 1.0
    """Seconds between two attempts."""
    tell: Callable[[Exception], None] = lambda _: None
    """Called once each time the service becomes unreachable."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] | None = None
    """Called in place of `time.sleep` and `asyncio.sleep`."""

    async def pause(self, seconds: float) -> None:
        """Wait, without blocking the event loop."""
        if self.sleep is None:
            await asyncio.sleep(seconds)
        else:
            self.sleep(seconds)


class LogChunkLine(BaseModel):
    """One line of output; `rank` None is the supervisor."""

    attempt: int
    rank: int | None
    time: float
    """Seconds since 1970."""
    text: str


class LogChunk(BaseModel):
    """A batch of output lines, in order."""

    number: int
    lines: list[LogChunkLine]
    dropped: int
    """Number of lines lost before these because they were written faster than they can be stored.
    """
    removed_bytes: int = 0
    """Bytes of the job's older output that was removed, if it is missing before these lines."""


@dataclass(slots=True, kw_only=True)
class Stream:
    """Reading position of one stream."""

    http: httpx2.AsyncClient
    path: str
    params: dict[str, str] = field(default_factory=dict)
    last_id: int | None = None
    ended: bool = False
    """Whether the stream has ended."""


async def follow_stream(
    stream: Stream, waiter: Waiter
) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
    """Yield every event up to and including `end`, and those that were stored after it.

    Raises:
        Unreachable: the service was unreachable for longer than the patience, or connections ended
            at once and without an event for as long.
        ServiceFailed: the service failed for longer than the patience.
        Refused: there is no such stream.
    """
    outage = _Outage(waiter=waiter)
    while not stream.ended:
        async with outage.tolerate(), _connect(stream) as source:
            outage.begin_connection()
            async for item in _read_items(stream, source):
                outage.note_event()
                yield item
            if not stream.ended:
                outage.end_connection(url=str(source.response.url))
        if not stream.ended:
            await waiter.pause(waiter.retry_s)


@dataclass(slots=True, kw_only=True)
class _Outage:
    waiter: Waiter
    lost_at: float | None = None
    """Time of the first failed attempt; None while the service responds."""
    connected_at: float | None = None
    """Time at which the newest connection began; None while there was none in this attempt."""
    has_event: bool = False
    """Whether an event arrived over the newest connection."""

    def begin_connection(self) -> None:
        self.connected_at, self.has_event = self.waiter.clock(), False

    def note_event(self) -> None:
        self.lost_at, self.has_event = None, True

    def end_connection(self, *, url: str) -> None:
        """Accept that a connection ended without an error, unless it was of no use.

        Raises:
            Unreachable: it ended at once and without an event.
        """
        if not self._was_useful():
            raise Unreachable(
                f"the stream at {url} ends at once and without an event: the service is stopping,"
                " or a proxy in between does not pass on server-sent events; let the proxy neither"
                " buffer nor close responses of this path"
            )
        self.lost_at = None

    @asynccontextmanager
    async def tolerate(self) -> AsyncIterator[None]:
        """Suppress the errors of an unreachable service until the patience is over.

        A useful connection ends the outage, and a new one begins when it is lost.
        """
        self.connected_at = None
        try:
            yield
        except (Unreachable, ServiceFailed) as error:
            now = self.waiter.clock()
            if self.lost_at is None or self._was_useful():
                self.waiter.tell(error)
                self.lost_at = now
            elif now - self.lost_at > self.waiter.patience_s:
                raise

    def _was_useful(self) -> bool:
        """Whether an event arrived over the connection, or it lasted: a stream may be silent for
        hours between two events.
        """
        if self.connected_at is None:
            return False
        return self.has_event or self.waiter.clock() - self.connected_at >= STEADY_S


@asynccontextmanager
async def _connect(stream: Stream) -> AsyncIterator[httpx2.EventSource]:
    headers = {"Last-Event-ID": str(stream.last_id)} if stream.last_id is not None else {}
    timeout = httpx2.Timeout(10.0, read=SILENCE_S)
    url = str(stream.http.base_url).rstrip("/")
    request = stream.http.sse(stream.path, params=stream.params, headers=headers, timeout=timeout)
    with translate_errors(url):
        async with request as source:
            await raise_for_status(source.response)
            stream.ended = source.response.status_code == 204
            yield source


async def _read_items(
    stream: Stream, source: httpx2.EventSource
) -> AsyncIterator[httpx2.ServerSentEvent]:
    """Yield events without connection hints, and keep the last number for the next connection."""
    if stream.ended:
        return
    async for item in source:
        if item.id.isdecimal():
            stream.last_id = int(item.id)
        stream.ended = stream.ended or item.event == "end"
        if item.data:
            yield item
