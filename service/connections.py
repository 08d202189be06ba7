"""Connections of the api: a request has to arrive in time, and strangers cannot use up all connections.

uvicorn offers a time limit only for connections that wait between two requests (`timeout_keep_alive`), and
`limit_concurrency` answers 503 to everybody once enough half requests are open. So a connection here closes when its
request stalls, and when there are too many, the one that has waited longest for the rest of a request makes room.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass
from typing import Any

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

_SPARE_FILES = 128
"""Open files that are left to the database, uploads and libraries."""
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 2\r\n"
    b"connection: close\r\n\r\ntoo many connections are in use; close some, or raise ACCORDION_MAX_CONNECTIONS\n"
)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How long a client may take to send a request, and how many may be connected."""

    header_s: float = 10.0
    """From the connection, or the answer before, to the end of the request's header."""
    body_silence_s: float = 30.0
    """Between two pieces of a request's body."""
    connections: int = 1000


class BoundedConnection(H11Protocol):
    """One connection of a client, closed when its request stalls."""

    def __init__(self, *given: Any, limits: ConnectionLimits, **more: Any) -> None:
        super().__init__(*given, **more)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._waits_for: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, where there is room or room can be made."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections and not self._make_room():
            _log.warning("too many connections", limit=self._limits.connections)
            transport.write(_FULL)
            transport.close()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_watching()
        super().connection_lost(exc)

    @property
    def waits_for_client(self) -> bool:
        """Whether the client has yet to send the rest of a request."""
        return self._waits_for is not None and not self.transport.is_closing()

    def _watch(self) -> None:
        """Limit the wait for what the client has to send next: a whole header, or another piece of the body."""
        state = self.conn.their_state
        is_busy = self.cycle is not None and not self.cycle.response_complete
        if state is h11.SEND_BODY:
            self._wait_for(h11.SEND_BODY, self._limits.body_silence_s)
        elif state is h11.IDLE and not is_busy:
            # A header has its time as a whole: pieces that trickle in do not extend it.
            if self._waits_for is not h11.IDLE:
                self._wait_for(h11.IDLE, self._limits.header_s)
        else:
            self._stop_watching()

    def _wait_for(self, state: object, seconds: float) -> None:
        self._stop_watching()
        self._waits_for = state
        self._timer = self.loop.call_later(seconds, self._end_wait)

    def _stop_watching(self) -> None:
        self._waits_for = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_wait(self) -> None:
        if self._waits_for is h11.SEND_BODY and self.flow.read_paused:
            self._wait_for(h11.SEND_BODY, self._limits.body_silence_s)
            return
        self._stop_watching()
        self.transport.abort()

    def _make_room(self) -> bool:
        """Close the connection that has waited longest for the rest of a request; False where none waits."""
        others = (other for other in self.connections if isinstance(other, BoundedConnection) and other is not self)
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
    """Let this process have as many open files as so many connections need; the connections there is room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft - _SPARE_FILES))
