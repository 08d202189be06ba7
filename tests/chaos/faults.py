"""Kills processes and database connections of a service at random."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.e2e.real_up import Up
from tests.postgres import Postgres

FAULTS = ("api", "scheduler", "actor", "supervisor", "worker", "connection")
_TITLES = {"actor": "ray::AccordionActor", "supervisor": "ray::Supervisor", "worker": "ray::Worker"}


class Faults:
    """Plants a fault every few seconds, in a thread, while the `with` block runs."""

    def __init__(
        self, up: Up, server: Postgres | None, draw: random.Random, *, seconds: tuple[float, float]
    ) -> None:
        self._up, self._server, self._draw, self._seconds = up, server, draw, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults")
        self.planted: Counter[str] = Counter()

    def __enter__(self) -> Faults:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._draw.uniform(*self._seconds)):
            fault = self._draw.choice(FAULTS)
            if self._plant(fault):
                self.planted[fault] += 1

    def _plant(self, fault: str) -> bool:
        """Plant a fault; False if there was nothing to kill."""
        if fault == "connection":
            return self._cut_connection()
        if fault in _TITLES:
            found = list_processes(self._up.home, _TITLES[fault])
            victims = [self._draw.choice(found)] if found else []
        else:
            victims = [pid] if (pid := self._up.pid(fault)) else []
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def _cut_connection(self) -> bool:
        if self._server is None:
            return False
        cut = self._server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            " ORDER BY random() LIMIT 1"
        )
        return bool(cut)


def list_processes(home: Path, title: str) -> list[int]:
    """Return the processes of this title under the home's Ray head."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            named = (folder / "cmdline").read_bytes().startswith(title.encode())
            if named and f"{home}/".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return sorted(found)
