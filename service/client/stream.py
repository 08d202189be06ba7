"""Server-sent events over lost connections: a reconnect sends the last number, so each event
arrives exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx2
from pydantic import BaseModel

from service.client.answers import raise_for_status, translate_errors
from service.client.errors import ClientError, ServiceFailed, Unreachable

SILENCE_S = 45.0
"""Read timeout: the service sends a comment every 15 s by default; without three of them the
connection is dead.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """How long a stream waits for an unreachable service."""

    patience_s: float = 60.0
    """Seconds from the first failed attempt to the last; a restarted service is back within
    seconds.
    """
    retry_s: float = 1.0
    """Seconds between two attempts."""
    tell: Callable[[Exception], None] = lambda _: None
    """Called once each time the service becomes unreachable."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


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

    http: httpx2.Client
    path: str
    params: dict[str, str] = field(default_factory=dict)
    last_id: int | None = None
    ended: bool = False
    """Whether the stream has ended."""


def follow_stream(stream: Stream, waiter: Waiter) -> Iterator[httpx2.ServerSentEvent]:
    """Yield every event up to and including `end`.

    Raises:
        Unreachable: the service was unreachable for longer than the patience.
        ServiceFailed: the service failed for longer than the patience.
        Refused: there is no such stream.
    """
    lost_at: float | None = None
    while not stream.ended:
        try:
            for item in _receive_once(stream):
                lost_at = None
                yield item
        except (Unreachable, ServiceFailed) as error:
            lost_at = _check_patience(error, lost_at, waiter)
        if not stream.ended:
            waiter.sleep(waiter.retry_s)


def _check_patience(error: ClientError, lost_at: float | None, waiter: Waiter) -> float:
    """Return when the service was lost.

    Raises:
        ClientError: the error, once the patience is over.
    """
    now = waiter.clock()
    if lost_at is None:
        waiter.tell(error)
        return now
    if now - lost_at > waiter.patience_s:
        raise error
    return lost_at


def _receive_once(stream: Stream) -> Iterator[httpx2.ServerSentEvent]:
    headers = {"Last-Event-ID": str(stream.last_id)} if stream.last_id is not None else {}
    timeout = httpx2.Timeout(10.0, read=SILENCE_S)
    url = str(stream.http.base_url).rstrip("/")
    request = stream.http.sse(stream.path, params=stream.params, headers=headers, timeout=timeout)
    with translate_errors(url), request as source:
        raise_for_status(source.response)
        stream.ended = source.response.status_code == 204
        yield from () if stream.ended else _keep_last_id(stream, source)


def _keep_last_id(stream: Stream, source: httpx2.EventSource) -> Iterator[httpx2.ServerSentEvent]:
    """Yield events without connection hints, and keep the last number for the next connection."""
    for item in source:
        if item.id.isdecimal():
            stream.last_id = int(item.id)
        stream.ended = item.event == "end"
        if item.data:
            yield item
