"""Wheels made by hand, and an index of them: a folder that pip reads by its URL, or a server."""

from __future__ import annotations

import base64
import hashlib
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    requires: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write a wheel whose module, named like it, has its VERSION."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata = "\n".join([*lines, *(f"Requires-Dist: {text}" for text in requires), ""])
    content = {
        f"{module}/__init__.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": WHEEL,
        **(files or {}),
    }
    record = [_record_line(path, text) for path, text in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            # A fixed date (1980) in place of now: equal contents give an equal wheel.
            archive.writestr(zipfile.ZipInfo(path), text)
    return wheel


def sha256_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _record_line(path: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(text.encode())}"


@dataclass(frozen=True)
class Index:
    """A package index in a folder, with the pages of PEP 503."""

    folder: Path

    @property
    def url(self) -> str:
        return (self.folder / "simple").as_uri()

    def add(self, name: str, version: str = "1.0", **content: Any) -> Path:
        """Add a wheel to the page of its package."""
        wheel = make_wheel(self.folder / "files", name, version, **content)
        page = self.folder / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        link = f'<a href="../../files/{wheel.name}#sha256={sha256_of(wheel)}">{wheel.name}</a>\n'
        with page.open("a") as file:
            file.write(link)
        return wheel


@dataclass
class IndexServer:
    """Serves an index over HTTP, as the test says."""

    port: int = 0
    login: str = ""
    """`user:password` without which every request is refused; empty for none."""
    is_down: bool = False
    """Whether every request fails with status 503."""
    is_cut: bool = False
    """Whether the connection ends in the middle of each wheel."""
    asked: threading.Event = field(default_factory=threading.Event)
    """Set by the first request."""
    answering: threading.Event = field(default_factory=threading.Event)
    """Requests wait for it; set at first."""

    def url(self, login: str = "") -> str:
        return f"http://{login}{'@' if login else ''}127.0.0.1:{self.port}/simple"


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, server_state: IndexServer, **named: Any) -> None:
        self._state = server_state
        super().__init__(*arguments, **named)

    def do_GET(self) -> None:
        self._state.asked.set()
        self._state.answering.wait()
        expected = f"Basic {base64.b64encode(self._state.login.encode()).decode()}"
        if self._state.login and self.headers.get("Authorization") != expected:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=index")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self._state.is_down:
            self.send_error(503)
        elif self._state.is_cut and self.path.endswith(".whl"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"ff\r\nPK")
        else:
            super().do_GET()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def serve_index(folder: Path) -> Iterator[IndexServer]:
    """Serve the index of a folder; requests that still wait are answered at the end."""
    state = IndexServer()
    state.answering.set()
    handler = partial(_Handler, server_state=state, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        state.port = server.server_address[1]
        # A client that was killed has closed its connection.
        server.handle_error = lambda *_: None
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield state
        finally:
            state.answering.set()
            server.shutdown()
            thread.join()
