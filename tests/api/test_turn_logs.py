"""What api and scheduler log of their address, of the lease and of outages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from accordion_service.scheduler.loop import Scheduler, run_scheduler
from accordion_service.scheduler.turn_logs import REPEAT_S, OutageLog
from accordion_service.settings.settings import load_settings
from tests.api.fake_runtime import FakeRuntime
from tests.api.test_restarts import CODE, LIMIT_S, Process
from tests.api.world import World

AWAY = OperationalError("SELECT a_long_statement", {}, ConnectionError("no\nserver"))


def events(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs]


def test_a_scheduler_logs_that_it_takes_and_loses_the_lease(world: World) -> None:
    with capture_logs() as logs:
        world.turn(3)
        other = world.new_scheduler()
        other.run_once()
        world.clock.now += 2 * world.settings.lease_s
        other.run_once()
        world.turn(3)
    assert events(logs) == ["lease taken", "standing by", "lease taken", "lease lost"]
    assert [line.get("token") for line in logs] == [1, None, 2, 1]


def test_an_outage_of_ray_is_logged_when_it_begins_and_ends_and_each_minute(world: World) -> None:
    world.turn()
    with capture_logs() as logs:
        world.runtime.down = True
        world.turn(20)
        world.clock.now += REPEAT_S
        world.turn(20)
        world.runtime.down = False
        world.turn(20)
    assert events(logs) == ["Ray fails", "Ray fails", "Ray works again"]
    assert "the Ray cluster does not respond" in logs[0]["error"]


def test_an_outage_of_the_database_is_one_line_without_a_traceback(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, errors = threading.Event(), [AWAY, AWAY, AWAY, None, ValueError("unexpected")]

    def fail(_: Scheduler) -> bool:
        error = errors.pop(0)
        if not errors:
            stop.set()
        if error is not None:
            raise error
        return True

    monkeypatch.setattr(Scheduler, "run_once", fail)
    settings = load_settings(home=tmp_path, database_url=database_url, drain_interval_s=0.01)
    with capture_logs() as logs:
        run_scheduler(settings, FakeRuntime(clock=time.time), stop=stop)
    assert events(logs)[1:-1] == ["database fails", "database works again", "turn"]
    assert logs[1]["error"] == "no server"
    assert ["exc_info" in line for line in logs[1:-1]] == [False, False, True]


def test_nothing_is_logged_of_what_never_failed() -> None:
    with capture_logs() as logs:
        OutageLog("Ray", time.monotonic).note_success()
    assert logs == []


def test_the_api_logs_its_address(tmp_path: Path, database_url: str) -> None:
    api = Process(tmp_path, database_url)
    api.end(signal.SIGTERM)
    again = subprocess.Popen(
        [sys.executable, "-c", CODE], env=api.env, stderr=subprocess.PIPE, text=True
    )
    assert again.stderr is not None
    lines = (json.loads(line) for line in again.stderr)
    began = next(line for line in lines if line["event"] == "api began")
    again.terminate()
    again.wait(timeout=LIMIT_S)
    api.client.close()
    assert began["address"] == f"http://127.0.0.1:{api.port}"
