"""`accordion up` as a process of its own, for tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from accordion_client import Client, ClientError, Unreachable
from accordion_service.settings.home import Home

WAIT_S = 240.0
"""Only ends a test that fails: a loaded two-core machine needs many times what a free one does."""

TEN_SECONDS = {
    "task": {"name": "digits-mlp", "options": {"hidden": 32, "min_step_s": 0.03}},
    "training": {"epochs": 12},
    "workers": {"min": 2, "max": 2},
}
"""A job of about ten seconds: long enough to break things in the middle."""


@dataclass
class Up:
    """One `accordion up`."""

    process: subprocess.Popen[str]
    home: Path
    client: Client
    token: str

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        self.process.terminate()
        self.process.communicate(timeout=WAIT_S)

    def pid(self, name: str) -> int:
        running = Home(self.home).running()
        return running.pids[name] if running else 0

    def kill(self, name: str) -> int:
        """Kill a program, wait until another one is in its place, and give the new process id."""
        before = self.pid(name)
        assert before, (
            f"{name} does not run"
        )  # to signal process 0 would end all of this test session
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: self.pid(name) not in (0, before))
        return self.pid(name)


def accordion(home: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ACCORDION_", "RAY_"))
    }
    command = [sys.executable, "-m", "accordion_client.commands.main", *arguments]
    if os.geteuid() == 0 and (program := shutil.which("setpriv")):
        # As people and containers run it: root might do what they may not, and no test would see.
        command = [program, "--bounding-set=-all", "--inh-caps=-all", *command]
    # With Ray's own niceness of 15, workers get 3 % of a CPU beside a busy process.
    priority = {"RAY_worker_niceness": "0", "ACCORDION_PASS_TO_WORKERS": "RAY_worker_niceness"}
    environment = {**kept, **priority, **variables, "ACCORDION_HOME": str(home)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def start(home: Path, **variables: str) -> Up:
    """A service that is ready; `variables` are added to its environment."""
    process = accordion(home, "up", "--port", "0", **variables)
    starting, line = process.stdout.readline(), process.stdout.readline()
    assert starting.startswith("starting Ray, the API and the scheduler")
    assert "accordion is ready at http" in line, process.communicate(timeout=WAIT_S)
    running = Home(home).running()
    token = Path(running.token_file).read_text()
    return Up(process, home, Client(running.url, token), token)


def wait_for(condition: Callable[[], object], story: Callable[[], object] = str) -> None:
    """Look until it holds; `story` is told where it does not."""
    limit = time.monotonic() + WAIT_S
    while not _holds(condition):
        assert time.monotonic() < limit, f"not within {WAIT_S:g} s\n{story()}"
        time.sleep(0.05)


def _holds(condition: Callable[[], object]) -> object:
    try:
        return condition()
    except Unreachable:  # an api that was killed, or one on a machine that has no time for it
        return False


def ready(client: Client) -> bool:
    try:
        return client.ready().ready
    except ClientError:
        return False


def processes_of(home: Path) -> list[str]:
    """Command lines of what runs with this home directory."""
    return [_command_line(pid) for pid in pids_of(home)]


def pids_of(home: Path) -> list[int]:
    """What runs with this home directory; the paths of its secrets are in every environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{home}/".encode() in (path / "environ").read_bytes().replace(b"\0", b"/\0"):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return f"process {pid}, which has just ended"
