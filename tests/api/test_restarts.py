"""The api as a process of its own: killed, ended and started again while a job runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from accordion_client.sdk.client import IDLE_CONNECTION_S
from accordion_service.api.app import serve_api
from accordion_service.errors import SettingsError
from accordion_service.scheduler.loop import run_scheduler
from accordion_service.settings.settings import load_settings
from tests.api.fake_runtime import FakeRuntime
from tests.api.test_streams import frames, numbers, read, submit
from tests.conftest import free_port

JOBS = "/api/v1/jobs"
CODE = (
    "from accordion_service.api.app import serve_api;"
    " from accordion_service.settings.settings import load_settings; serve_api(load_settings())"
)
LIMIT_S = 60.0
"""A loaded machine needs up to ten seconds for an api process to start."""


class Process:
    """One api process on a port of its own."""

    def __init__(self, home: Path, database_url: str) -> None:
        self.port = free_port()
        self.env = {
            **os.environ,
            "ACCORDION_HOME": str(home),
            "ACCORDION_DATABASE_URL": database_url,
            "ACCORDION_PORT": str(self.port),
        }
        self.client = httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            timeout=30,
            limits=httpx2.Limits(keepalive_expiry=IDLE_CONNECTION_S),
        )
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE], env=self.env, stderr=subprocess.DEVNULL
        )
        wait_for(self.answers)
        return self.process

    def answers(self) -> bool:
        assert self.process.poll() is None, "the api process ended by itself"
        try:
            return self.client.get("/livez").status_code == 200
        except httpx2.TransportError:
            return False

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(timeout=LIMIT_S)


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, f"not reached in {LIMIT_S} s"
        time.sleep(0.05)


@pytest.fixture
def api(tmp_path: Path, database_url: str) -> Iterator[Process]:
    """An api process, with a scheduler and its fake cluster in this one."""
    stop = threading.Event()
    settings = load_settings(
        home=tmp_path, database_url=database_url, drain_interval_s=0.05, survey_interval_s=0.1
    )
    runtime = FakeRuntime(clock=time.time)
    scheduler = threading.Thread(
        target=run_scheduler, args=(settings, runtime), kwargs={"stop": stop}
    )
    scheduler.start()
    api = Process(tmp_path, database_url)
    yield api
    stop.set()
    scheduler.join(timeout=LIMIT_S)
    api.client.close()
    if api.process.poll() is None:
        api.end(signal.SIGKILL)


def test_a_reader_of_a_killed_api_comes_back_and_misses_nothing(api: Process) -> None:
    path = f"{JOBS}/{submit(api.client, training={'epochs': 30})}/events"
    seen = numbers(read(api.client, path, stop_after=20))
    api.end(signal.SIGKILL)
    api.start()
    seen += numbers(read(api.client, path, **{"Last-Event-ID": str(seen[-1])}))
    assert seen == list(range(1, len(seen) + 1))
    epochs = api.client.get(path.replace("/events", "/epochs")).json()["items"]
    assert [epoch["epoch"] for epoch in epochs] == list(range(30))


def test_an_api_that_is_asked_to_go_ends_its_streams_and_goes(api: Process) -> None:
    path = f"{JOBS}/{submit(api.client, training={'epochs': 100_000})}/events"
    with api.client.stream("GET", path) as answer:
        stream = frames(answer.iter_lines())
        next(stream)
        assert api.end(signal.SIGTERM) in {0, -signal.SIGTERM}
        assert [fields for fields in stream if fields["event"] == "end"] == []


def test_a_taken_port_is_named_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            SettingsError, match=f"port {port} on 127.0.0.1 cannot be used .*choose another"
        ):
            serve_api(load_settings(home=tmp_path, port=port))
