"""Fixtures of the api tests: a world to turn by hand, a client of its api, and a live service on a
real port.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi.testclient import TestClient

from service.app import create_app
from service.client.client import IDLE_CONNECTION_S
from service.scheduler import run_scheduler
from service.settings import load_settings
from tests.api.fake_runtime import FakeRuntime
from tests.api.team import ADMIN, Team
from tests.api.world import Clock, World

LOCAL = "http://127.0.0.1"


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[World]:
    world = World(tmp_path, database_url=database_url)
    yield world
    world.close()


@pytest.fixture
def client(world: World) -> Iterator[TestClient]:
    app = create_app(world.settings, world.clock)
    with TestClient(app, base_url=LOCAL) as client:
        yield client
    app.state.accordion.database.close()


@dataclass
class Live:
    """An api on a port and a scheduler in a thread, over one database."""

    url: str
    runtime: FakeRuntime
    draining: threading.Event
    """When set, the service shuts down."""

    def client(self) -> httpx2.Client:
        return httpx2.Client(
            base_url=self.url, timeout=30, limits=httpx2.Limits(keepalive_expiry=IDLE_CONNECTION_S)
        )


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    yield from serve_live(tmp_path)


@pytest.fixture(scope="module")
def shared_live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    yield from serve_live(tmp_path_factory.mktemp("live"))


def serve_live(home: Path, **more: Any) -> Iterator[Live]:
    settings = load_settings(
        home=home, port=0, drain_interval_s=0.02, survey_interval_s=0.05, **more
    )
    app = create_app(settings)
    runtime, stop = FakeRuntime(clock=time.time), threading.Event()
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=2)
    )
    threads = [
        threading.Thread(target=server.run),
        threading.Thread(target=run_scheduler, args=(settings, runtime), kwargs={"stop": stop}),
    ]
    for thread in threads:
        thread.start()
    try:
        yield Live(url=_address(server), runtime=runtime, draining=app.state.accordion.draining)
    finally:
        app.state.accordion.draining.set()
        server.should_exit = True
        stop.set()
        for thread in threads:
            thread.join(timeout=30)
        app.state.accordion.database.close()


def _address(server: uvicorn.Server) -> str:
    limit = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < limit, "the api did not start within 30 s"
        time.sleep(0.01)
    return f"{LOCAL}:{server.servers[0].sockets[0].getsockname()[1]}"


@pytest.fixture
def team(tmp_path: Path, database_url: str) -> Iterator[Team]:
    settings = load_settings(home=tmp_path, admin_token=ADMIN, database_url=database_url)
    app = create_app(settings, clock := Clock())
    with TestClient(app, base_url=LOCAL, follow_redirects=False) as client:
        yield Team(app, client, clock)
    app.state.accordion.database.close()
