"""Kills processes and database connections of a service at random."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.chaos.standbys import Standbys
from tests.e2e.real_up import Up, pids_of
from tests.postgres import Postgres

FAULTS = ("api", "scheduler", "actor", "supervisor", "worker", "connection", "database")
SERVER_FAULTS = {"connection", "database"}
"""Faults that need a database server, so that they are impossible with SQLite."""
_TITLES = {"actor": "ray::AccordionActor", "supervisor": "ray::Supervisor", "worker": "ray::Worker"}


class Faults:
    """Plants a fault every few seconds, one of the kinds that were planted least. A database server
    that it starts ends with this thread.
    """

    def __init__(
        self,
        up: Up,
        server: Postgres | None,
        standbys: Standbys | None,
        draw: random.Random,
        *,
        seconds: tuple[float, float],
    ) -> None:
        self._up, self._server, self._standbys = up, server, standbys
        self._draw, self._seconds = draw, seconds
        self._next_at = time.monotonic()
        possible = set(FAULTS) if server else set(FAULTS) - SERVER_FAULTS
        self.planted = Counter({fault: 0 for fault in FAULTS if fault in possible})
        """Number of faults by kind, of those that are possible."""

    def plant_if_due(self) -> None:
        """Plant a fault that finds something to kill, if the last one was long enough ago."""
        if time.monotonic() < self._next_at:
            return
        kinds = sorted(self.planted, key=lambda fault: (self.planted[fault], self._draw.random()))
        fault = next((fault for fault in kinds if self._plant(fault)), None)
        if fault is not None:
            self.planted[fault] += 1
        self._next_at = time.monotonic() + self._draw.uniform(*self._seconds)

    def describe(self) -> str:
        """Return how many faults of each kind were planted, and which kinds are impossible."""
        counts = ", ".join(f"{count} {fault}" for fault, count in sorted(self.planted.items()))
        impossible = [fault for fault in FAULTS if fault not in self.planted]
        named = f"; impossible with SQLite: {', '.join(impossible)}" if impossible else ""
        return f"killed: {counts}{named}"

    def find_missing(self) -> list[str]:
        """Return a sentence for each possible kind of fault that was never planted."""
        return [f"no {fault} was killed" for fault, count in self.planted.items() if not count]

    def _plant(self, fault: str) -> bool:
        """Plant a fault; False if there was nothing to kill."""
        if fault == "connection":
            return self._cut_connection()
        if fault == "database":
            return self._crash_database()
        found = self._list_candidates(fault)
        with suppress(ProcessLookupError):
            if found:
                os.kill(self._draw.choice(found), signal.SIGKILL)
                return True
        return False

    def _list_candidates(self, fault: str) -> list[int]:
        if fault in _TITLES:
            return list_processes(self._up.home, _TITLES[fault])
        first = self._up.pid(fault)
        second = self._standbys.pid(fault) if self._standbys is not None else 0
        return [pid for pid in (first, second) if pid]

    def _crash_database(self) -> bool:
        if self._server is None:
            return False
        self._server.crash()
        return True

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
    return sorted(pid for pid in pids_of(home) if _has_title(pid, title))


def _has_title(pid: int, title: str) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title.encode())
    except OSError:
        return False
