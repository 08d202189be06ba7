"""`accordion up` with running jobs, when it is stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from accordion_client.machine.up import up
from accordion_service.domain.access import FULL_ACCESS
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.process.child_processes import Program
from accordion_service.settings.home import Home, Running
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.migrations import upgrade
from accordion_service.store.tables.checkpoints import CheckpointRow
from accordion_service.store.tables.models import AttemptRow, JobRow
from accordion_service.store.writes.jobs import JobSubmission
from accordion_workers.records.contract import JobSpec
from tests.unit.service.conftest import Accordion

SAVES = """
import signal, sqlite3, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
open({ready!r}, "w").close()
while len(asked) < {times}:
    time.sleep(0.01)
with sqlite3.connect({database!r}) as database:
    database.execute("UPDATE jobs SET status = 'QUEUED'")
    database.execute("UPDATE attempts SET message = 'paused; its state is saved'")
"""
"""A scheduler that has to be asked so many times until the jobs are saved."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A service with a job that runs and has saved 191 steps."""
    settings = Settings(home=tmp_path / "home", port=0, cancel_grace_s=100.0)
    Home(settings.home).make()
    upgrade(settings.database)
    database = Database(settings.database)
    spec = JobSpec.model_validate({"name": "pull", "task": {"name": "digits-mlp"}})
    job, _ = JobSubmission(database, lambda: 0.0, FULL_ACCESS).submit(spec, None)
    with database.write() as session:
        row = session.get(JobRow, job.id)
        row.status, row.reason, row.attempt = Status.RUNNING, Reason.TRAINING, 1
        attempt = AttemptRow(job_id=job.id, number=1, workers=1, reason="ADMITTED", message="")
        attempt.created_at = 0.0
        session.add(attempt)
        saved = CheckpointRow(job_id=job.id, name="c", attempt=1, generation=1, epoch=5, step=191)
        saved.size_bytes, saved.seconds, saved.time = 1, 0.0, 0.0
        session.add(saved)
    database.close()
    return settings


def run_up(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, *numbers: signal.Signals, times: int
) -> list[str]:
    """Run `accordion up` with a scheduler that must be asked so many times; send it signals."""
    ready = settings.home / "ready"
    database = str(settings.home / "accordion.db")
    code = SAVES.format(ready=str(ready), database=database, times=times)
    scheduler = Program(
        name="scheduler",
        command=(sys.executable, "-c", code),
        environment=dict(os.environ),
        log=settings.home / "logs" / "scheduler.log",
    )
    monkeypatch.setattr("accordion_client.machine.up.build_programs", lambda _: [scheduler])
    monkeypatch.setattr(
        "accordion_client.machine.up.list_unready", lambda _: "" if ready.exists() else "it starts"
    )
    said: list[str] = []
    pending = list(numbers)

    def say(line: str) -> None:
        said.append(line)
        if "ready at" in line or "to save" in line:
            threading.Timer(
                0.1, os.kill, (os.getpid(), pending.pop(0))
            ).start() if pending else None

    up(settings, say)
    return said


def test_running_jobs_are_told_as_saved_when_up_is_stopped(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = run_up(settings, monkeypatch, signal.SIGTERM, times=1)
    assert "1 running job has 100 s to save; Ctrl-C again does not wait" in said
    told = "pull: paused; its state is saved; its newest checkpoint has 191 steps"
    assert told in said
    assert Home(settings.home).stop_report.read_text() == f"{told}\n"


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGQUIT,)])
def test_a_second_interrupt_does_not_wait_for_jobs_that_save(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, numbers: tuple[signal.Signals, ...]
) -> None:
    said = run_up(settings, monkeypatch, *numbers, times=2)
    assert any(line.startswith("pull: ") for line in said)


def test_a_second_sigterm_still_waits_for_jobs_that_save(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings.model_copy(update={"cancel_grace_s": 0.1})
    monkeypatch.setattr("accordion_client.machine.up.END_GRACE_S", 0.5)
    monkeypatch.setattr("accordion_service.process.child_processes.END_GRACE_S", 0.5)
    said = run_up(settings, monkeypatch, signal.SIGTERM, signal.SIGTERM, times=3)
    assert "pull: its workers had not saved; its newest checkpoint has 191 steps" in said


def test_down_tells_which_jobs_have_saved(
    alone: Accordion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    home.make()
    home.stop_report.write_text("pull: paused; its state is saved\n")
    running = Running(pid=1, url="http://here", ray_address="", ray_dir="", pids={})
    monkeypatch.setattr("accordion_client.machine.down.down", lambda _home, at_once: running)
    told = "pull: paused; its state is saved\nstopped the service at http://here\n"
    assert alone("down").out == told
