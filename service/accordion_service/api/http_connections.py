"""HTTP connections of the api, with limits on slow requests and on the number of connections.

uvicorn offers a time limit only for connections that wait between two requests
(`timeout_keep_alive`), and `limit_concurrency` answers 503 to all clients once enough incomplete
requests are open. So a connection here closes when its request stalls, and when there are too many,
the one with the oldest incomplete request is closed.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

_SPARE_FILES = 128
"""File descriptors reserved for the database, uploads and libraries."""
_LINGER_S = 2.0
"""How long a refused connection stays open, so that the client can read the answer."""
_MAX_LINGERING = _SPARE_FILES // 2
"""Refused connections that may stay open; they use spare descriptors."""
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after:"
    b" 2\r\nconnection: close\r\n\r\ntoo many connections are in use; close some, or raise"
    b" ACCORDION_MAX_CONNECTIONS\n"
)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Time limits of a request, and the maximum number of connections."""

    header_s: float = 10.0
    """From the connection, or the previous response, to the end of the request header."""
    body_silence_s: float = 30.0
    """Between two chunks of a request body."""
    unread_s: float = 60.0
    """Until a client reads enough of a response that the next part can be sent."""
    connections: int = 1000


@dataclass(slots=True)
class OpenConnections:
    """Client connections of the server of this process, for its metrics."""

    limit: int = 0
    """Maximum number; 0 until the server starts."""
    members: Sized = ()

    @property
    def num_open(self) -> int:
        """Number of connections that are open now."""
        return len(self.members)


class BoundedConnection(H11Protocol):
    """A client connection that is closed when its request stalls, or its response is not read."""

    def __init__(self, *given: Any, limits: ConnectionLimits, **more: Any) -> None:
        super().__init__(*given, **more)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._waits_for: object = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, if necessary by closing one with an incomplete request."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections and not self._make_room():
            _log.warning("too many connections", limit=self._limits.connections)
            self._refuse(transport)
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        if self._is_refused:
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Close the connection if its client does not go on to read the response."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Send the next part of the response."""
        super().resume_writing()
        self._stop_write_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_watching()
        self._stop_write_timer()
        super().connection_lost(exc)

    @property
    def waits_for_client(self) -> bool:
        """Whether the request is incomplete."""
        return self._waits_for is not None and not self.transport.is_closing()

    def _watch(self) -> None:
        """Start the time limit of the next expected input: a whole header, or a chunk of
        the body.
        """
        state = self.conn.their_state
        is_busy = self.cycle is not None and not self.cycle.response_complete
        if state is h11.SEND_BODY:
            self._wait_for(h11.SEND_BODY, self._limits.body_silence_s)
        elif state is h11.IDLE and not is_busy:
            # The limit is for the whole header: bytes that trickle in do not extend it.
            if self._waits_for is not h11.IDLE:
                self._wait_for(h11.IDLE, self._limits.header_s)
        else:
            self._stop_watching()

    def _refuse(self, transport: asyncio.Transport) -> None:
        """Answer 503 and close.

        Closing with unread data resets the connection, and the client may lose the answer. So the
        connection lingers until the client closes it, unless too many do.
        """
        self._is_refused = True
        transport.write(_FULL)
        if len(self.connections) > self._limits.connections + _MAX_LINGERING:
            transport.close()
            return
        transport.write_eof()
        self._timer = self.loop.call_later(_LINGER_S, transport.abort)

    def _wait_for(self, state: object, seconds: float) -> None:
        self._stop_watching()
        self._waits_for = state
        self._timer = self.loop.call_later(seconds, self._end_wait)

    def _stop_watching(self) -> None:
        self._waits_for = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _end_wait(self) -> None:
        if self._waits_for is h11.SEND_BODY and self.flow.read_paused:
            self._wait_for(h11.SEND_BODY, self._limits.body_silence_s)
            return
        self._stop_watching()
        self.transport.abort()

    def _make_room(self) -> bool:
        """Close the connection with the oldest incomplete request; False if there is none."""
        others = (
            other
            for other in self.connections
            if isinstance(other, BoundedConnection) and other is not self
        )
        waiting = [other for other in others if other.waits_for_client and other._timer is not None]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda other: (other.cycle is not None, other._deadline()))
        oldest._stop_watching()
        oldest.transport.abort()
        return True

    def _deadline(self) -> float:
        return self._timer.when() if self._timer is not None else float("inf")


def raise_file_limit(connections: int) -> int:
    """Raise the limit of open files for that many connections; return how many it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return (
        connections
        if soft == resource.RLIM_INFINITY
        else max(1, min(connections, soft - _SPARE_FILES))
    )
