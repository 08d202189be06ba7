"""Programs that are kept running and never left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from accordion_service.process.child_processes import (
    FIRST_DELAY_S,
    MAX_DELAY_S,
    ProcessManager,
    Program,
    restart_delay_s,
)

WAIT_S = 20.0
SLEEP = "import time; time.sleep(600)"


def wait_for(condition: Callable[[], object]) -> None:
    """Look until it holds."""
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit, f"not within {WAIT_S:g} s"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Program]:
    def make(name: str, code: str = SLEEP, **more) -> Program:
        command = (sys.executable, "-c", code)
        return Program(
            name=name,
            command=command,
            environment=dict(os.environ),
            log=tmp_path / f"{name}.log",
            **more,
        )

    return make


@pytest.fixture
def keeper() -> Iterator[ProcessManager]:
    keeper = ProcessManager()
    yield keeper
    keeper.stop(tuple(keeper.pids()))


def test_a_killed_program_is_started_again(
    keeper: ProcessManager, program: Callable[..., Program]
) -> None:
    keeper.start([program("a"), program("b")])
    before = keeper.pids()
    os.kill(before["a"], signal.SIGKILL)
    wait_for(lambda: keeper.look() == ["a"])
    after = keeper.pids()
    assert after["a"] != before["a"]
    assert after["b"] == before["b"]
    assert alive(after["a"])


def test_a_program_is_started_again_with_the_one_it_needs(
    keeper: ProcessManager, program: Callable[..., Program]
) -> None:
    keeper.start([program("ray"), program("api"), program("scheduler", needs=("ray",))])
    before, started = keeper.pids(), []
    os.kill(before["ray"], signal.SIGKILL)
    wait_for(lambda: started.extend(keeper.look()) or len(started) == 2)
    assert set(started) == {"ray", "scheduler"}
    assert keeper.pids()["api"] == before["api"]


def test_a_program_whose_folder_of_logs_is_gone_is_started_again(
    keeper: ProcessManager, program: Callable[..., Program], tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    keeper.start([replace(program("a"), log=logs / "a.log")])
    shutil.rmtree(logs)
    os.kill(keeper.pids()["a"], signal.SIGKILL)
    wait_for(lambda: keeper.look() == ["a"])
    assert (logs.stat().st_mode & 0o777, (logs / "a.log").exists()) == (0o700, True)


def test_a_program_that_cannot_be_started_now_is_started_later_and_others_live(
    keeper: ProcessManager, program: Callable[..., Program], tmp_path: Path
) -> None:
    keeper.start([program("a"), program("b")])
    before = keeper.pids()
    (tmp_path / "a.log").unlink()
    (tmp_path / "a.log").mkdir()  # no log can be opened, also by root
    os.kill(before["a"], signal.SIGKILL)
    wait_for(lambda: keeper.look() or keeper.failures())
    assert keeper.failures() == {"a": f"Is a directory: {tmp_path / 'a.log'}"}
    (tmp_path / "a.log").rmdir()
    wait_for(lambda: keeper.look() == ["a"])
    assert keeper.failures() == {}
    assert keeper.pids()["b"] == before["b"]


@pytest.mark.parametrize(
    "error", [BlockingIOError(11, "no process"), subprocess.SubprocessError("preexec")]
)
def test_a_program_is_started_later_when_there_is_no_room_for_a_process(
    keeper: ProcessManager,
    program: Callable[..., Program],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    keeper.start([program("a")])
    os.kill(keeper.pids()["a"], signal.SIGKILL)
    with monkeypatch.context() as patched:
        patched.setattr("subprocess.Popen", Mock(side_effect=error))
        wait_for(lambda: keeper.look() or keeper.failures())
    wait_for(lambda: keeper.look() == ["a"])


def test_the_wait_before_a_restart_grows_and_has_a_limit() -> None:
    delays = [restart_delay_s(deaths) for deaths in range(1, 40)]
    assert delays[0] == FIRST_DELAY_S
    assert delays == sorted(delays)
    assert delays[-1] == MAX_DELAY_S


def test_deaths_are_counted_from_the_beginning_after_a_steady_life(
    program: Callable[..., Program],
) -> None:
    now = [0.0]
    keeper = ProcessManager(clock=lambda: now[0])
    keeper.start([program("a", "pass")])
    for seconds, deaths in ((1.0, 1), (1.0, 2), (100.0, 1)):
        now[0] += seconds
        wait_for(lambda: keeper.look() or keeper.deaths()["a"] == deaths)  # noqa: B023 - called at once
        now[0] += MAX_DELAY_S
        wait_for(keeper.look)
    keeper.stop(("a",))


def test_stopping_ends_programs_that_do_not_listen(
    program: Callable[..., Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accordion_service.process.child_processes.END_GRACE_S", 0.5)
    ready = tmp_path / "ready"
    deaf = (
        "import signal, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f" pathlib.Path({str(ready)!r}).touch();"
    )
    keeper = ProcessManager()
    keeper.start([program("deaf", f"{deaf} {SLEEP}")])
    wait_for(ready.exists)
    [pid] = keeper.pids().values()
    keeper.stop(("deaf",))
    assert not alive(pid)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[str]]:
    """A child of this process that no keeper started; it ends with 7 when it is told to."""
    command = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(7)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as stranger:
        yield stranger
        stranger.kill()


def test_stopping_leaves_children_alone_that_were_there_before(
    stranger: subprocess.Popen[str],
    program: Callable[..., Program],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("accordion_service.process.child_processes.END_GRACE_S", 0.5)
    keeper = ProcessManager()
    keeper.start([program("a")])
    keeper.stop(("a",))
    assert stranger.communicate("end\n", timeout=WAIT_S) == (None, None)
    assert stranger.returncode == 7


def test_how_a_child_ended_that_was_there_before_is_left_to_whoever_started_it(
    stranger: subprocess.Popen[str], keeper: ProcessManager, program: Callable[..., Program]
) -> None:
    keeper.start([program("a")])
    stranger.stdin.write("end\n")
    stranger.stdin.flush()
    wait_for(lambda: not alive(stranger.pid))
    keeper.look()
    assert stranger.wait(WAIT_S) == 7


PARENT = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", {SLEEP!r}]).pid, flush=True)
{SLEEP}
"""
KEEPING = f"""
import os, pathlib, sys
from accordion_service.process.child_processes import ProcessManager, Program
command = (sys.executable, "-c", {PARENT!r})
keeper = ProcessManager()
log = pathlib.Path("a.log")
keeper.start([Program(name="a", command=command, environment=dict(os.environ), log=log)])
print(keeper.pids()["a"], flush=True)
sys.stdin.readline()
keeper.stop(("a",))
"""


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """A process that keeps a program, which has a child: the process, the program's pid and the
    child's.
    """
    keeping = subprocess.Popen(
        [sys.executable, "-c", KEEPING],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    program = int(keeping.stdout.readline())
    wait_for(lambda: (tmp_path / "a.log").read_text().endswith("\n"))
    grandchild = int((tmp_path / "a.log").read_text())
    yield keeping, program, grandchild
    for pid in filter(alive, (keeping.pid, program, grandchild)):
        os.kill(pid, signal.SIGKILL)
    keeping.communicate()


def test_programs_die_with_a_keeper_that_is_killed(
    keeping: tuple[subprocess.Popen[str], int, int],
) -> None:
    process, program, _ = keeping
    process.kill()
    wait_for(lambda: not alive(program))


def test_stopping_ends_what_programs_left_behind(
    keeping: tuple[subprocess.Popen[str], int, int],
) -> None:
    process, program, grandchild = keeping
    os.kill(program, signal.SIGKILL)
    process.communicate("stop\n", timeout=WAIT_S)
    assert process.returncode == 0
    assert not alive(grandchild)
