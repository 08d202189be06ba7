"""Incomplete requests and too many clients: the api still answers the others."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from accordion_service.api.http_connections import (
    BoundedConnection,
    ConnectionLimits,
    raise_file_limit,
)

HALF_HEADER = b"POST / HTTP/1.1\r\nHost: x\r\n"
HALF_BODY = HALF_HEADER + b"Content-Length: 99\r\n\r\nhalf"
WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 1 << 25
"""Characters of a response that no socket buffer takes."""
STREAM = b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
Serve = Callable[..., int]


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await request.body())} bytes")


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a small application with limits; its port."""
    go, servers = threading.Event(), ExitStack()

    def stream(_: Request) -> StreamingResponse:
        return StreamingResponse(iter(lambda: "begun" if not go.wait(0.05) else "", ""))

    def serve(**limits: float) -> int:
        routes = [
            Route("/", answer, methods=["GET", "POST"]),
            Route("/stream", stream),
            Route("/large", lambda _: PlainTextResponse("x" * LARGE)),
        ]
        http = partial(BoundedConnection, limits=ConnectionLimits(**limits))
        server = uvicorn.Server(
            uvicorn.Config(Starlette(routes=routes), http=http, log_config=None)
        )
        listener = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        servers.callback(thread.join, 30)
        servers.callback(setattr, server, "should_exit", True)
        servers.callback(go.set)
        return listener.getsockname()[1]

    with servers:
        yield serve


def connect(port: int, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(data)
    return connection


def is_closed(connection: socket.socket) -> bool:
    with closing(connection):
        try:
            return connection.recv(100) == b""
        except ConnectionResetError:
            return True


def is_refused(connection: socket.socket, data: bytes) -> bool:
    try:
        connection.sendall(data)
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def is_answered(connection: socket.socket, data: bytes) -> bool:
    """Send more, and return whether the service has answered, or closed the connection."""
    try:
        connection.sendall(data)
        connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("sent", [b"", HALF_HEADER, HALF_BODY])
def test_a_request_that_stalls_is_closed(serve: Serve, sent: bytes) -> None:
    assert is_closed(connect(serve(header_s=0.1, body_silence_s=0.1), sent))


def test_a_header_that_trickles_in_is_closed(serve: Serve) -> None:
    connection = connect(serve(header_s=0.3), HALF_HEADER)
    connection.settimeout(0.02)
    assert any(is_refused(connection, b"a") for _ in range(1000))
    connection.close()


def test_a_second_request_that_stalls_is_closed(serve: Serve) -> None:
    connection = connect(serve(header_s=0.2), WHOLE)
    while not connection.recv(1000).endswith(b"0 bytes"):
        pass
    connection.sendall(HALF_HEADER)
    assert is_closed(connection)


def test_a_stream_outlives_the_limits_of_its_request(serve: Serve) -> None:
    connection = connect(serve(header_s=0.1, body_silence_s=0.1), STREAM)
    received = b"".join(connection.recv(100) for _ in range(8))
    assert received.count(b"begun") > 3
    connection.close()


def test_a_response_that_is_not_read_is_closed(serve: Serve) -> None:
    port = serve(connections=1, unread_s=0.1)
    with closing(connect(port, WHOLE.replace(b"/ ", b"/large "))) as unread:
        assert unread.recv(100)
        while httpx2.get(f"http://127.0.0.1:{port}/").status_code == 503:
            pass


def test_a_response_that_is_read_slowly_is_complete(serve: Serve) -> None:
    with httpx2.stream("GET", f"http://127.0.0.1:{serve(unread_s=20.0)}/large") as response:
        assert sum(map(len, response.iter_raw(1 << 16))) == LARGE


@pytest.mark.parametrize("sent", [b"", HALF_HEADER, HALF_BODY])
def test_half_requests_do_not_silence_the_service(serve: Serve, sent: bytes) -> None:
    port = serve(connections=10)
    with ExitStack() as strangers:
        for _ in range(40):
            strangers.enter_context(closing(connect(port, sent)))
        for _ in range(10):
            assert httpx2.get(f"http://127.0.0.1:{port}/").text == "0 bytes"


def test_a_client_beyond_the_limit_is_told_so(serve: Serve) -> None:
    port = serve(connections=2)
    with ExitStack() as clients:
        for _ in range(2):
            connection = clients.enter_context(closing(connect(port, STREAM)))
            assert connection.recv(100)
        refused = httpx2.get(f"http://127.0.0.1:{port}/")
    assert refused.status_code == 503
    assert "ACCORDION_MAX_CONNECTIONS" in refused.text


NO_HOST = b"GET / HTTP/1.1\r\n\r\n"
TWO_HOSTS = b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"


@pytest.mark.parametrize("sent", [NO_HOST, TWO_HOSTS, b"nonsense\r\n\r\n"])
def test_a_request_that_is_none_gets_400(serve: Serve, sent: bytes) -> None:
    with closing(connect(serve(), sent)) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "sent",
    [
        HALF_HEADER + b"X: ",
        HALF_HEADER + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ",
    ],
    ids=["header", "after the body"],
)
def test_a_header_without_end_is_refused(serve: Serve, sent: bytes) -> None:
    connection = connect(serve(), sent)
    connection.settimeout(0.02)
    assert any(is_answered(connection, b"a" * 1000) for _ in range(200))
    connection.close()


def test_two_requests_at_once_are_answered_in_their_order(serve: Serve) -> None:
    body = HALF_HEADER + b"Content-Length: 3\r\n\r\nabc"
    with closing(connect(serve(), body + WHOLE)) as connection:
        received = b""
        while received.count(b" bytes") < 2:
            received += connection.recv(1000)
    assert received.index(b"3 bytes") < received.index(b"0 bytes")


def test_a_client_that_offers_another_protocol_goes_on_with_this_one(serve: Serve) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    with closing(connect(serve(), HALF_HEADER + offer + b"Content-Length: 2\r\n\r\nab")) as client:
        received = b""
        while not received.endswith(b"2 bytes"):
            piece = client.recv(1000)
            assert piece, received
            received += piece
        client.sendall(WHOLE)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_a_refused_client_that_sends_more_disturbs_nobody(serve: Serve) -> None:
    port = serve(connections=1)
    with closing(connect(port, STREAM)) as stream:
        assert stream.recv(100)
        with closing(connect(port, HALF_HEADER)) as refused, suppress(OSError):
            for _ in range(50):
                refused.sendall(b"a" * 1000)
        assert stream.recv(100)


def test_the_limit_follows_from_the_files_that_a_process_may_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_to = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    assert raise_file_limit(1000) == 512 - 128
    assert set_to == [(512, 512)]
    assert raise_file_limit(100) == 100
