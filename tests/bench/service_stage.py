"""A service with a long history: the processes of the api and the scheduler, and their home."""

from __future__ import annotations

import gc
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import func, select

from accordion_client import Client
from accordion_service.domain.access import FULL_ACCESS
from accordion_service.settings.settings import Settings, load_settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.jobs import JobSubmission
from accordion_workers.records.contract import JobSpec
from tests.bench.service_history import add_ended_jobs
from tests.bench.service_load import Target
from tests.conftest import free_port

ROOT = Path(__file__).parents[2]
_PATIENCE_S = 300.0
_POLL_S = 0.1
_ENDLESS = {"task": {"name": "digits-mlp"}, "training": {"epochs": 10_000}}


class Stage:
    """An api over a database with `jobs` ended jobs, up while the `with` block runs."""

    def __init__(self, home: Path, database_url: str, *, jobs: int) -> None:
        self.home = home
        self.target = Target(url=f"http://127.0.0.1:{free_port()}", token=secrets.token_urlsafe(32))
        self._environment = {
            "ACCORDION_HOME": str(home),
            "ACCORDION_DATABASE_URL": database_url,
            "ACCORDION_ADMIN_TOKEN": self.target.token,
            "ACCORDION_NO_AUTH": "0",
            "ACCORDION_PORT": self.target.url.rpartition(":")[2],
            "ACCORDION_REQUESTS_PER_SECOND": "100000",
            "ACCORDION_REQUEST_BURST": "100000",
            "ACCORDION_MAX_CONNECTIONS": "2000",
            "ACCORDION_LOG_LEVEL": "WARNING",
        }
        self._jobs = jobs
        self._api: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Stage:
        self.settings: Settings = load_settings(
            home=self.home, database_url=self._environment["ACCORDION_DATABASE_URL"]
        )
        add_ended_jobs(self.settings.database, self.home, self._jobs)
        self.start_api()
        # A full collection of what this process holds by now takes 0.2 s, which would count as the
        # time of the request in which it falls.
        gc.collect()
        gc.freeze()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_api()

    def start_api(self) -> None:
        """Start the api, and wait until it answers."""
        self._api = self._start("accordion_client.commands.main", "api")
        wait_until(self._answers, "the api answers")

    def kill_api(self) -> None:
        """Kill the api."""
        assert self._api is not None
        self._api.kill()
        self._api.wait()

    @contextmanager
    def run_jobs(
        self, number: int, *, epoch_s: float = 1.0
    ) -> Iterator[tuple[SchedulerProcess, list[str]]]:
        """Run the scheduler over a scripted cluster, and jobs with epochs of this length on it,
        while the block runs.
        """
        process = self._start("tests.bench.service_cluster", str(epoch_s), stdout=subprocess.PIPE)
        try:
            job_ids = self._submit_endless_jobs(number)
            wait_until(lambda: self._count_jobs(job_ids, "RUNNING") == number, "all jobs run")
            yield SchedulerProcess(process), job_ids
            with Client(self.target.url, self.target.token) as client:
                for job_id in job_ids:
                    client.cancel(job_id)
            wait_until(lambda: self._count_jobs(job_ids, "CANCELLED") == number, "all jobs end")
        finally:
            process.kill()
            process.wait()

    def _submit_endless_jobs(self, number: int) -> list[str]:
        database = Database(self.settings.database)
        submission = JobSubmission(database, time.time, FULL_ACCESS)
        spec = JobSpec.model_validate({**_ENDLESS, "workers": {"min": 1, "max": 1}})
        try:
            return [submission.submit(spec, None)[0].id for _ in range(number)]
        finally:
            database.close()

    def _count_jobs(self, job_ids: Sequence[str], status: str) -> int:
        query = select(func.count()).where(JobRow.id.in_(job_ids), JobRow.status == status)
        database = Database(self.settings.database)
        try:
            with database.read() as session:
                return session.scalar(query) or 0
        finally:
            database.close()

    def known_jobs(self, job_ids: Sequence[str]) -> int:
        """Return how many of the jobs the database holds."""
        database = Database(self.settings.database)
        try:
            return len(JobReads(database).known(set(job_ids)))
        finally:
            database.close()

    def time_command(self, *arguments: str) -> float:
        """Return the seconds of one call of the command line."""
        client = {"ACCORDION_URL": self.target.url, "ACCORDION_TOKEN": self.target.token}
        started = time.perf_counter()
        subprocess.run(
            [Path(sys.executable).with_name("accordion"), *arguments],
            env={**os.environ, **client},
            check=True,
            capture_output=True,
        )
        return time.perf_counter() - started

    def _answers(self) -> bool:
        assert self._api is not None
        if self._api.poll() is not None:
            raise RuntimeError(f"the api ended with status {self._api.returncode}")
        try:
            return bool(httpx2.get(f"{self.target.url}/livez").is_success)
        except httpx2.TransportError:
            return False

    def _start(self, module: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, **self._environment},
            cwd=ROOT,
            **options,
        )


class SchedulerProcess:
    """A running `tests.bench.service_cluster`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def take_measured(self) -> dict[str, list[float]]:
        """Return what the process measured since the last call."""
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGUSR1)
        return dict(json.loads(self._process.stdout.readline()))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not hold in time.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"within {_PATIENCE_S:g} s it did not happen that {what}")
        time.sleep(_POLL_S)
