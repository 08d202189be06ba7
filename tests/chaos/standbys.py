"""A second api and a second scheduler beside those of `accordion up`."""

from __future__ import annotations

import sys
from pathlib import Path

from accordion_service.process.child_processes import (
    END_GRACE_S,
    Program,
    end_process,
    start_process,
)
from tests.conftest import free_port
from tests.e2e.real_up import Up

NAMES = ("scheduler", "api")
"""Programs that run twice, in the order in which the second ones are stopped."""


class Standbys:
    """Second programs on the same database and Ray cluster. One of the two schedulers waits for
    the lease of the other.

    Only the thread that created them may call them: they die with it.
    """

    def __init__(self, up: Up) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        """URL of the second api."""
        self._programs = {name: _second_program(up, name, port) for name in NAMES}
        self._processes = {name: start_process(self._programs[name]) for name in NAMES}

    def pid(self, name: str) -> int:
        """Return the process id of a second program; 0 if it has ended."""
        process = self._processes[name]
        return process.pid if process.poll() is None else 0

    def restart_dead(self) -> None:
        """Restart programs that ended."""
        for name in NAMES:
            if not self.pid(name):
                self._processes[name] = start_process(self._programs[name])

    def stop(self) -> None:
        """End them."""
        for name in NAMES:
            end_process(self._processes[name], grace_s=END_GRACE_S)


def _second_program(up: Up, name: str, port: int) -> Program:
    return Program(
        name=name,
        command=(sys.executable, "-P", "-m", "accordion_client.commands.main", name),
        environment={**_read_environment(up.pid(name)), "ACCORDION_PORT": str(port)},
        log=up.home / "logs" / f"{name}-2.log",
    )


def _read_environment(pid: int) -> dict[str, str]:
    """Return the variables with which a process was started."""
    variables = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
    return dict(variable.split("=", 1) for variable in variables)
