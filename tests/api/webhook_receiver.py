"""A receiver of webhooks on loopback, which answers as a test says."""

from __future__ import annotations

import json
import ssl
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import patch

import standardwebhooks.webhooks
from standardwebhooks.webhooks import Webhook

LOOPBACK = "127.0.0.0/8"


@dataclass
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def data(self) -> dict[str, Any]:
        found = json.loads(self.body)["data"]
        assert isinstance(found, dict)
        return found


@dataclass
class Receiver:
    """Answers of a receiver, and what it got."""

    port: int = 0
    scheme: str = "http"
    answers: deque[int] = field(default_factory=deque)
    """Statuses of the next responses; 204 after them."""
    lasting: int = 204
    """Status of the responses after those."""
    free: threading.Event = field(default_factory=threading.Event)
    """Responses wait until it is set."""
    received: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    def next_status(self) -> int:
        return self.answers.popleft() if self.answers else self.lasting


@contextmanager
def run_receiver(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a receiver until the end of the block."""
    receiver = Receiver(scheme="http" if tls is None else "https")
    receiver.free.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(self.path, headers, body))
            receiver.free.wait()
            status = receiver.next_status()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{receiver.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.free.set()
        server.shutdown()
        thread.join()
        server.server_close()


def verify(secret: str, request: Received) -> Any:
    """Verify a request as its receiver would at the time that it names, with the library of the
    specification; return its body.
    """
    sent_at = datetime.fromtimestamp(int(request.headers["webhook-timestamp"]), UTC)

    class Then(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return sent_at

    with patch.object(standardwebhooks.webhooks, "datetime", Then):
        return Webhook(secret).verify(request.body, request.headers)
