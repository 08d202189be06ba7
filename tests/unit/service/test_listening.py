"""The socket that the api listens on."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
import uvicorn

from accordion_service.api.app import serve_api
from accordion_service.settings.settings import load_settings


async def _accept(listener: socket.socket) -> int:
    """TCP_NODELAY of a connection that asyncio accepted."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        accepted.set_result(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(note, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        writer.close()
        return await accepted


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_answers_are_sent_at_once_and_do_not_wait_for_an_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    listeners: list[socket.socket] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda _, sockets: listeners.extend(sockets))
    # It configures logging of the whole process, and later tests would keep that.
    monkeypatch.setattr("accordion_service.api.app.configure_logs", lambda *_: None)
    serve_api(load_settings(home=tmp_path, host=host, port=0))
    assert asyncio.run(_accept(listeners[0])) != 0


def test_metrics_know_the_connections_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: list[uvicorn.Server] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: servers.append(server))
    monkeypatch.setattr("accordion_service.api.app.configure_logs", lambda *_: None)
    serve_api(load_settings(home=tmp_path, port=0, max_connections=50))
    [server] = servers
    connections = server.config.app.state.accordion.connections  # type: ignore[union-attr]
    assert (connections.num_open, connections.limit) == (0, 50)
    server.server_state.connections.add(asyncio.Protocol())  # type: ignore[arg-type]
    assert connections.num_open == 1
