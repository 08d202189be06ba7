"""A relay that loses responses: their requests have been executed."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

Cut = Literal["nothing", "head", "hang"]
"""Part of a response that arrives before its connection is lost; `hang` for none, until the client
closes the connection.
"""


@dataclass
class Cuts:
    """Connections of a relay."""

    url: str
    """Address of the relay."""
    service: tuple[str, int]
    left: int
    """Number of connections that will be lost."""
    cut: Cut
    connections: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> bool:
        """Count a connection, and return whether it will be lost."""
        with self.lock:
            self.connections += 1
            self.left -= 1
            return self.left >= 0


@contextmanager
def relay_to(url: str, *, cuts: int, cut: Cut = "nothing") -> Iterator[Cuts]:
    """Relay connections to a service; the first `cuts` of them are lost in a response."""
    parts = urlsplit(url)
    state = Cuts("", (str(parts.hostname), int(parts.port or 0)), cuts, cut)

    class Relay(socketserver.BaseRequestHandler):
        request: socket.socket

        def handle(self) -> None:
            with socket.create_connection(state.service) as service, suppress(OSError):
                sender = threading.Thread(target=copy, args=(self.request, service), daemon=True)
                sender.start()
                if state.take():
                    head = read_head(service)
                    self.request.sendall(head if state.cut == "head" else b"")
                    if state.cut == "hang":
                        sender.join()
                else:
                    copy(service, self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as server:
        server.daemon_threads = True
        state.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


def copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until either side is closed."""
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def read_head(service: socket.socket) -> bytes:
    """Read a response up to the end of its header; its body is not read."""
    read: Any = bytearray()
    while not read.endswith(b"\r\n\r\n"):
        if not (byte := service.recv(1)):
            raise ConnectionResetError("the service closed the connection")
        read += byte
    return bytes(read)
