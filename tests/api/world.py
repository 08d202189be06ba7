"""A service in one process: a database of its own, a clock that tests move, a fake cluster, and a
scheduler to turn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from accordion_service.domain.access import FULL_ACCESS
from accordion_service.domain.jobs.status_table import ENDED
from accordion_service.domain.jobs.statuses import Status
from accordion_service.scheduler.loop import Scheduler
from accordion_service.settings.settings import Settings, load_settings
from accordion_service.store.engine.database import Database
from accordion_service.store.migrations import upgrade
from accordion_service.store.reads.cluster import ClusterReads
from accordion_service.store.reads.history import HistoryReads
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.reads.overrides import OverrideReads
from accordion_service.store.reads.queue import QueueReads
from accordion_service.store.tables.models import JobRow, OverrideRow
from accordion_service.store.writes.jobs import JobSubmission
from accordion_service.store.writes.overrides import JobOverrides, RequestedOverride
from accordion_service.store.writes.steering import JobLifecycle
from accordion_workers.records.contract import JobSpec, LogLine
from tests.api.fake_runtime import FakeRuntime

DIGITS: dict[str, Any] = {"task": {"name": "digits-mlp"}, "training": {"epochs": 4}}
"""A spec that ends after four epochs."""
TURN_S = 0.25


class Clock:
    """Seconds since 1970 that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self._jumped_s = 0.0

    def __call__(self) -> float:
        return self.now

    def monotonic(self) -> float:
        """Seconds that passed, however the clock was set."""
        return self.now - self._jumped_s

    def jump(self, seconds: float) -> None:
        """Set the clock."""
        self.now += seconds
        self._jumped_s += seconds


class World:
    """One service over one database."""

    def __init__(self, home: Path, **settings: Any) -> None:
        self.settings: Settings = load_settings(
            home=home, **{"survey_interval_s": TURN_S / 2, **settings}
        )
        upgrade(self.settings.database)
        self.clock = Clock()
        self.runtime = FakeRuntime(clock=self.clock, monotonic=self.clock.monotonic)
        self._open_database()
        self.scheduler = self.new_scheduler()

    def _open_database(self) -> None:
        self.database = Database(self.settings.database)
        self.jobs, self.queue = JobReads(self.database), QueueReads(self.database)
        self.history, self.cluster = HistoryReads(self.database), ClusterReads(self.database)
        self.overrides = OverrideReads(self.database)
        self.submission = JobSubmission(self.database, self.clock, FULL_ACCESS)
        self._override_writes = JobOverrides(self.database, self.clock, FULL_ACCESS)
        self.lifecycle = JobLifecycle(self.database, self.clock, FULL_ACCESS)

    def move_to(self, settings: Settings) -> None:
        """Let the service go on with the database of other settings, over the same cluster."""
        self.database.close()
        self.settings = settings
        self._open_database()
        self.kill_scheduler()

    def new_scheduler(self, clock: Callable[[], float] | None = None) -> Scheduler:
        parts = {"database": self.database, "runtime": self.runtime, "settings": self.settings}
        return Scheduler(**parts, clock=clock or self.clock, monotonic=self.clock.monotonic)

    def kill_scheduler(self) -> None:
        """Replace the scheduler, releasing nothing, and wait until its lease runs out."""
        self.scheduler = self.new_scheduler()
        self.clock.now += self.settings.lease_s

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.now += TURN_S
            self.scheduler.run_once()

    def turn_until(self, condition: Callable[[], bool], limit: int = 200) -> None:
        for _ in range(limit):
            if condition():
                return
            self.turn()
        raise AssertionError(
            f"not reached in {limit} turns:"
            f" {[(j.status, j.message) for j in self.jobs.unfinished()]}"
        )

    def submit(self, **changes: Any) -> str:
        job, _ = self.submission.submit(JobSpec.model_validate({**DIGITS, **changes}), None)
        return job.id

    def job(self, job_id: str) -> JobRow:
        row = self.jobs.get(job_id)
        assert row is not None
        return row

    def cancel(self, job_id: str) -> None:
        self.lifecycle.cancel(job_id, lambda _: None, grace_s=self.settings.cancel_grace_s)

    def pause(self, job_id: str) -> None:
        self.lifecycle.pause(job_id, lambda _: None, grace_s=self.settings.cancel_grace_s)

    def resume(self, job_id: str) -> None:
        self.lifecycle.resume(job_id, lambda _: None)

    def resize(self, job_id: str, min_workers: int, max_workers: int) -> None:
        self.lifecycle.resize(job_id, min_workers, max_workers, check=lambda _: None)

    def override(self, job_id: str, **wish: Any) -> str:
        whole = {
            "target": "compression",
            "level": "low",
            "layers": ["*"],
            "apply_at": "next_step",
            "until": None,
            "reason": "",
        }
        row, _ = self._override_writes.add_override(
            job_id, RequestedOverride(**{**whole, **wish}), check=lambda _: None, idempotency=None
        )
        return row.id

    def cancel_override(self, job_id: str, override_id: str) -> None:
        self._override_writes.cancel_override(job_id, override_id, lambda _: None)

    def override_row(self, job_id: str, override_id: str) -> OverrideRow:
        row = self.overrides.get(job_id, override_id)
        assert row is not None
        return row

    def train(self, job_id: str, workers: int | None = None) -> None:
        """Turn until the job trains, with so many workers where that is said."""
        self.turn_until(
            lambda: (
                self.job(job_id).status == Status.RUNNING
                and workers in {None, self.job(job_id).world_size}
            )
        )

    def reach(self, job_id: str, status: Status) -> JobRow:
        """Turn until the job is in that state."""
        self.turn_until(lambda: self.job(job_id).status == status)
        return self.job(job_id)

    def say(self, job_id: str, text: str) -> None:
        """The job's first worker writes a line."""
        job = self.runtime.jobs[job_id]
        job.logs.append(LogLine(attempt=job.attempt, rank=0, time=self.clock.now, text=text))

    def finish(self, job_id: str) -> JobRow:
        """Turn until the job has ended."""
        self.turn_until(lambda: self.has_ended(job_id))
        return self.job(job_id)

    def has_ended(self, job_id: str) -> bool:
        return Status(self.job(job_id).status) in ENDED

    def events(self, job_id: str, kind: str | None = None) -> list[Any]:
        rows = self.history.events(job_id, after=0, limit=10_000)
        return [row for row in rows if kind in {None, row.type}]

    def epochs(self, job_id: str) -> list[int]:
        return [row.epoch for row in self.history.epochs(job_id)]

    def close(self) -> None:
        self.database.close()
