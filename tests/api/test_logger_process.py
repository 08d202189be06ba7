"""The process that serves loggers: started when it is needed, and gone with its scheduler."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from accordion_service.domain.jobs.loggers import LoggerState
from accordion_service.loggers.serving import run_loggers
from accordion_service.store.reads.loggers import read_loggers
from tests.api.world import World
from tests.architecture.source import ROOT
from tests.programs import run_program

BOARD = {"kind": "tensorboard"}
HEAVY = frozenset({"mlflow", "tensorboardX", "wandb"})


@pytest.fixture
def world(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A service whose clock shows nearly the time of the processes that it starts."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    world = World(tmp_path, database_url=database_url)
    world.clock.jump(time.time() - world.clock.now - 600.0)
    yield world
    world.scheduler.release()
    world.close()


def children() -> set[int]:
    """Process IDs of the children of this process that serve loggers."""
    found = run_program(["ps", "--ppid", str(os.getpid()), "-o", "pid=,args="])
    lines = (line.split(maxsplit=1) for line in found.stdout.splitlines())
    return {int(pid) for pid, command in lines if "accordion_service.loggers.serving" in command}


def turn_until(world: World, condition: Callable[[], bool]) -> None:
    world.turn()
    while not condition():  # pytest's time limit ends it
        time.sleep(0.1)
        world.turn()


def test_it_is_started_for_a_logger_serves_it_and_ends_with_its_scheduler(world: World) -> None:
    world.finish(world.submit())
    assert children() == set()
    job_id = world.submit(loggers=[BOARD])
    turn_until(world, lambda: read_loggers(world.database, job_id)[0].state == LoggerState.DONE)
    [pid] = children()
    assert list(Path(read_loggers(world.database, job_id)[0].location).iterdir())
    world.scheduler.release()
    assert children() == set()
    assert not Path(f"/proc/{pid}").exists()


def test_one_that_is_killed_is_replaced(world: World) -> None:
    job_id = world.submit(loggers=[BOARD])
    turn_until(world, lambda: bool(children()))
    [first] = children()
    os.kill(first, signal.SIGKILL)
    turn_until(world, lambda: read_loggers(world.database, job_id)[0].state == LoggerState.DONE)
    [second] = children()
    assert second != first


def test_turns_go_on_while_it_cannot_be_started(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = Mock(side_effect=BlockingIOError(11, "Resource temporarily unavailable"))
    job_id = world.submit(loggers=[BOARD])
    with monkeypatch.context() as patched:
        patched.setattr("accordion_service.loggers.process.subprocess.Popen", tried)
        turn_until(world, lambda: tried.called)
    turn_until(world, lambda: read_loggers(world.database, job_id)[0].state == LoggerState.DONE)


def test_it_ends_when_nothing_is_due(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
    stop = threading.Event()
    thread = threading.Thread(
        target=run_loggers,
        args=(world.database, world.settings),
        kwargs={"stop": stop, "idle_s": 0.1},
    )
    thread.start()
    thread.join()
    assert not stop.is_set()


def test_neither_api_nor_scheduler_loads_packages_of_loggers() -> None:
    modules = "accordion_service.api.app, accordion_service.scheduler.loop"
    code = f"import sys, {modules}; print(*sys.modules)"
    done = run_program([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert HEAVY.isdisjoint(done.stdout.split())
    assert "accordion_service.loggers.turns" not in done.stdout.split()
