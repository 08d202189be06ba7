"""The database fails over to its standby while jobs are submitted and run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from accordion_service.store.engine.database import Database, hide_password
from accordion_service.store.tables.models import LeaseRow
from accordion_service.store.writes.leases import SCHEDULER_LEASE
from tests.api.conftest import Live, serve_live
from tests.api.world import DIGITS
from tests.conftest import Require, free_port
from tests.postgres import REPLICATED, Postgres, find_program, promote, run_postgres, run_standby

CLIENTS, BEFORE = 4, 40
"""Clients that submit jobs, and the jobs that they submit before the primary is killed."""
LONG = {**DIGITS, "training": {"epochs": 100_000}}


@dataclass
class Pair:
    """A database server and its standby."""

    primary: Postgres
    standby: Postgres
    initdb: Path

    def url(self, database: str) -> str:
        """URL that leads to whichever server accepts writes."""
        name = database.rpartition("/")[2]
        user = database.partition("@")[0]
        servers = (self.primary, self.standby)
        hosts, ports = (
            ",".join(str(getattr(one, name)) for one in servers) for name in ("host", "port")
        )
        query = f"host={hosts}&port={ports}"
        return f"{user}@/{name}?{query}&target_session_attrs=read-write"


@dataclass
class Submitters:
    """Clients that submit jobs until they are told to stop, and note each response."""

    url: str
    stop: threading.Event = field(default_factory=threading.Event)
    accepted: dict[str, str] = field(default_factory=dict)
    """ID of each job that the service confirmed, by its idempotency key."""
    refused: list[Any] = field(default_factory=list)

    def run(self, number: int) -> None:
        with httpx2.Client(base_url=self.url, timeout=60) as client:
            count = 0
            while not self.stop.is_set():
                key = f"{number}-{count}"
                headers = {"Idempotency-Key": key}
                # The scheduler starts none of them: the cluster is full.
                made = client.post("/api/v1/jobs", json=DIGITS, headers=headers)
                if made.is_success:
                    self.accepted[key], count = made.json()["id"], count + 1
                else:
                    self.refused.append(made)


@pytest.fixture
def pair(require: Require) -> Iterator[Pair]:
    initdb = find_program("initdb") or require("initdb")
    with (
        run_postgres(initdb, free_port, REPLICATED) as primary,
        run_standby(primary, initdb, free_port) as standby,
    ):
        yield Pair(primary, standby, initdb)


@pytest.fixture
def url(pair: Pair) -> str:
    return pair.url(pair.primary.create_database())


@pytest.fixture
def live(tmp_path: Path, url: str) -> Iterator[Live]:
    yield from serve_live(tmp_path, database_url=url)


def wait_until(condition: Any) -> None:
    while not condition():  # pytest's time limit ends it
        time.sleep(0.05)


def read_lease(url: str) -> tuple[int, float]:
    """Token and time of the newest renewal of the scheduler's lease."""
    database = Database(url)
    try:
        with database.read() as session:
            row = session.get(LeaseRow, SCHEDULER_LEASE)
            assert row is not None
            return row.token, row.renewed_at
    finally:
        database.close()


def test_a_failover_loses_nothing_that_was_confirmed(live: Live, pair: Pair, url: str) -> None:
    submitters = Submitters(live.url)
    threads = [threading.Thread(target=submitters.run, args=(n,)) for n in range(CLIENTS)]
    with live.client() as client:
        running = client.post("/api/v1/jobs", json=LONG).json()["id"]
        wait_until(lambda: status(client, running) == "RUNNING")
        for thread in threads:
            thread.start()
        wait_until(lambda: len(submitters.accepted) >= BEFORE)
        pair.primary.kill()
        wait_until(lambda: submitters.refused)
        assert client.get("/readyz").status_code == 503
        before = len(submitters.accepted)
        promote(pair.standby, pair.initdb)
        promoted_at = time.time()
        wait_until(lambda: len(submitters.accepted) >= before + BEFORE)
        submitters.stop.set()
        for thread in threads:
            thread.join()
        check_refused(submitters.refused)
        check_accepted(client, submitters.accepted)
        wait_until(lambda: read_lease(url)[1] > promoted_at)
        epoch = client.get(f"/api/v1/jobs/{running}").json()["progress"]["epoch"]
        wait_until(lambda: num_epochs(client, running) > epoch + 1)
        assert client.get("/readyz").json()["ready"]


def check_refused(refused: list[Any]) -> None:
    for answer in refused:
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert answer.json()["detail"] == "the database does not respond; try again in a moment"
        assert answer.headers["retry-after"] == "2"


def check_accepted(client: httpx2.Client, accepted: dict[str, str]) -> None:
    for key, job_id in accepted.items():
        assert client.get(f"/api/v1/jobs/{job_id}").status_code == 200
        again = client.post("/api/v1/jobs", json=DIGITS, headers={"Idempotency-Key": key})
        assert (again.status_code, again.json()["id"]) == (200, job_id)


def status(client: httpx2.Client, job_id: str) -> str:
    return str(client.get(f"/api/v1/jobs/{job_id}").json()["status"])


def num_epochs(client: httpx2.Client, job_id: str) -> int:
    return int(client.get(f"/api/v1/jobs/{job_id}").json()["progress"]["epoch"])


def test_a_message_names_the_hosts_of_a_url_and_not_its_password() -> None:
    url = "postgresql+psycopg://me:secret@/db?host=a,b&port=1,2&target_session_attrs=read-write"
    assert hide_password(url) == "postgresql+psycopg://me:***@/db?host=a%2Cb&port=1%2C2"
