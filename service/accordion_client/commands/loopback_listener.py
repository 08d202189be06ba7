"""Receives the code with which a browser logs in this command line, on a port of this machine (RFC
8252).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, SimpleQueue
from urllib.parse import parse_qs, urlsplit

from accordion_service.errors import StartError

_PAGE = b"<!doctype html><meta charset=utf-8><title>Accordion</title><p>%b</p>"


class LoopbackListener:
    """A listener that waits for one code."""

    def __init__(self, port: int, codes: SimpleQueue[str]) -> None:
        self.port = port
        self._codes = codes

    def wait_for_code(self, timeout_s: float) -> str:
        """Return the code that the browser brings.

        Raises:
            StartError: none came in time.
        """
        try:
            return self._codes.get(timeout=timeout_s)
        except Empty:
            raise StartError(
                f"nobody logged in within {timeout_s / 60:g} minutes; run the command again"
            ) from None


@contextmanager
def open_listener(port: int) -> Iterator[LoopbackListener]:
    """Listen inside the block; 0 for any free port.

    Raises:
        StartError: the port is taken.
    """
    codes: SimpleQueue[str] = SimpleQueue()
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), _build_handler(codes))
    except OSError as error:
        raise StartError(
            f"port {port} cannot be used ({error.strerror}); choose another one with --port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield LoopbackListener(server.server_port, codes)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _build_handler(codes: SimpleQueue[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers the browser; browsers also open connections without a request."""

        timeout = 10

        def do_GET(self) -> None:  # named by the standard library
            """Take the code of the query."""
            found = parse_qs(urlsplit(self.path).query).get("code", [])
            if found:
                with suppress(OSError):  # The code counts, even if the browser has gone.
                    self._answer(200, b"The command line is logging in. You can close this page.")
                codes.put(found[0])
            else:
                self._answer(404, b"This address is only for the login of a command line.")

        def log_message(self, *_: object) -> None:
            """Write no line for a request."""

        def _answer(self, status: int, text: bytes) -> None:
            page = _PAGE % text
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(page)

    return Handler
