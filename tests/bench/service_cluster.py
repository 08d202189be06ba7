"""The scheduler over a scripted cluster whose jobs report new progress in every turn, and end an
epoch every so many seconds, as a process.

`python -m tests.bench.service_cluster SECONDS`, with the settings of the service.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from accordion_service.process.garbage_collection import collect_less_often
from accordion_service.process.logs import configure_logs
from accordion_service.runtime.protocol import Node, SupervisorState
from accordion_service.scheduler.loop import Scheduler
from accordion_service.settings.settings import load_settings
from accordion_service.store.engine.database import Database
from accordion_workers.records.contract import Cursor, Drained
from tests.api.fake_job import FakeJob
from tests.api.fake_runtime import FakeRuntime

NODE_CPUS = (64.0,) * 16


@dataclass
class Measured:
    """What the scheduler did, in seconds."""

    turns: list[float] = field(default_factory=list)
    """Duration of each turn, without what the scripted cluster itself computed."""
    lags: list[float] = field(default_factory=list)
    """Age of each record when the cluster learned that it is stored."""


class PacedRuntime(FakeRuntime):
    """A scripted cluster in real time, which counts the time that it takes itself."""

    def __init__(self, measured: Measured, epoch_s: float) -> None:
        super().__init__(clock=time.time, cpus=NODE_CPUS)
        self.own_s = 0.0
        """Seconds that the cluster computed."""
        self._measured = measured
        self._epoch_s = epoch_s
        self._moved_at: dict[str, float] = {}

    def drain_many(self, cursors: Mapping[str, Cursor]) -> dict[str, Drained]:
        return self._count(lambda: super(PacedRuntime, self).drain_many(cursors))

    def supervisors(self) -> list[SupervisorState]:
        return self._count(super().supervisors)

    def nodes(self) -> list[Node]:
        return self._count(super().nodes)

    def drain(self, job_id: str, confirmed: Cursor) -> Drained:
        job, now = self.jobs.get(job_id), time.time()
        if job is not None:
            stored = (confirmed.attempt, confirmed.generation, confirmed.seq)
            self._measured.lags += [
                now - record.time
                for record in job.waiting
                if (record.attempt, record.generation, record.seq) <= stored
            ]
        self.batches.clear()
        drained = super().drain(job_id, confirmed)
        if drained.progress is None:
            return drained
        progress = drained.progress.model_copy(update={"time": now})
        return drained.model_copy(update={"progress": progress})

    def _move(self, job: FakeJob) -> None:
        now, job_id = time.monotonic(), job.launch.job_id
        # Jobs that began together do not end their epochs together for long.
        began = self._moved_at.setdefault(job_id, now - random.uniform(0.0, self._epoch_s))
        if now - began >= self._epoch_s:
            self._moved_at[job_id] = now
            super()._move(job)
            job.journal.clear()

    def _count(self, call: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        try:
            return call()
        finally:
            self.own_s += time.perf_counter() - started


def main() -> None:
    """Run turns until SIGTERM; at SIGUSR1 print what was measured since the one before."""
    stop, told = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGUSR1, lambda *_: told.set())
    settings, measured = load_settings(), Measured()
    # On standard error: standard output has the figures alone.
    configure_logs(settings.log_level, "scheduler")
    runtime = PacedRuntime(measured, epoch_s=float(sys.argv[1]))
    database = Database(settings.database)
    scheduler = Scheduler(database=database, runtime=runtime, settings=settings, clock=time.time)
    collect_less_often()
    while not stop.is_set():
        started, own = time.perf_counter(), runtime.own_s
        scheduler.run_once()
        measured.turns.append(time.perf_counter() - started - (runtime.own_s - own))
        if told.is_set():
            told.clear()
            print(json.dumps(asdict(measured)), flush=True)
            measured.turns.clear()
            measured.lags.clear()
        stop.wait(settings.drain_interval_s)
    scheduler.release()
    database.close()


if __name__ == "__main__":
    main()
