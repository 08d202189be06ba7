"""`accordion down` stops the service of a home directory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accordion_client.machine.down import down
from accordion_service.errors import StartError
from accordion_service.settings.home import Home

HOLDER = """
import os, signal, sys
from pathlib import Path
from accordion_service.settings.home import Home, Running
home = Home(Path(sys.argv[1]))
home.make()
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[2] == "hurried":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, lambda *_: sys.exit())
with home.locked():
    home.write(Running(pid=os.getpid(), url="http://here", ray_address="", ray_dir="", pids={}))
    print("runs", flush=True)
    while True:
        signal.pause()
"""
Hold = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Start a process that holds the home directory as `accordion up` does."""
    started: list[subprocess.Popen[str]] = []

    def start(ears: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, str(tmp_path), ears]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stream = started[-1].stdout
        assert stream is not None
        assert stream.readline() == "runs\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_running_service_is_stopped(hold: Hold, tmp_path: Path) -> None:
    service = hold("listening")
    stopped = down(Home(tmp_path))
    assert stopped is not None
    assert stopped.pid == service.pid
    assert service.wait(timeout=60) != 0
    assert Home(tmp_path).running() is None


def test_one_that_does_not_stop_is_told_with_what_ends_it(hold: Hold, tmp_path: Path) -> None:
    service = hold("deaf")
    with pytest.raises(StartError, match=rf"kill -9 {service.pid}"):
        down(Home(tmp_path), timeout_s=0.2)


def test_without_a_service_it_says_so_and_succeeds(tmp_path: Path) -> None:
    Home(tmp_path).make()
    assert down(Home(tmp_path)) is None


def test_a_service_that_is_not_to_wait_for_its_jobs_is_told_so(hold: Hold, tmp_path: Path) -> None:
    service = hold("hurried")
    down(Home(tmp_path), at_once=True, timeout_s=60)
    assert service.wait(timeout=60) == 0
