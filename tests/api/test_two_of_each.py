"""Two api processes and two schedulers on one PostgreSQL database."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from accordion_service.store.engine.database import Database
from accordion_service.store.reads.cluster import SCHEDULER_LEASE
from accordion_service.store.reads.history import HistoryReads
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.tables.models import LeaseRow
from tests.api.fake_runtime import FakeRuntime
from tests.api.shared_runtime import RuntimeServer
from tests.api.test_nothing_lost import expected
from tests.api.test_restarts import JOBS, LIMIT_S, Process, wait_for
from tests.api.test_streams import numbers, read, submit
from tests.api.world import DIGITS
from tests.pooled_databases import PooledDatabases

SETTINGS = {
    "ACCORDION_DRAIN_INTERVAL_S": "0.03",
    "ACCORDION_SURVEY_INTERVAL_S": "0.1",
    "ACCORDION_LEASE_S": "1",
}
KEYS = 12
ALONE = {"workers": {"min": 1, "max": 1}}
"""A job that is not resized when others end."""
LONG = {**ALONE, "training": {"epochs": 100_000}}


@dataclass
class Pairs:
    """Two api processes, two schedulers, and the cluster of both."""

    apis: list[Process]
    schedulers: dict[int, subprocess.Popen[bytes]]
    """The processes, by their process ID."""
    runtime: FakeRuntime
    database: Database

    def leader(self) -> int:
        """Process id of the scheduler that holds the lease; 0 if none does."""
        with self.database.read() as session:
            row = session.get(LeaseRow, SCHEDULER_LEASE)
        owner = int(row.owner.split(":")[1]) if row is not None and row.owner else 0
        return owner if owner in self.schedulers else 0

    def lines(self, job_id: str) -> list[str]:
        """All kept lines of rank 0."""
        chunks = HistoryReads(self.database).logs(job_id)
        return [line["text"] for chunk in chunks for line in chunk.lines if line["rank"] == 0]


@pytest.fixture(scope="module")
def pairs(
    tmp_path_factory: pytest.TempPathFactory, pooled_databases: PooledDatabases
) -> Iterator[Pairs]:
    home, url = tmp_path_factory.mktemp("home"), pooled_databases.take()
    server = RuntimeServer(runtime := FakeRuntime(clock=time.time))
    settings = {**SETTINGS, "ACCORDION_HOME": str(home), "ACCORDION_DATABASE_URL": url}
    schedulers = [server.start_scheduler(settings) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        apis = list(pool.map(lambda _: Process(home, url), range(2)))
    database = Database(url)
    yield Pairs(apis, {one.pid: one for one in schedulers}, runtime, database)
    for process in [*schedulers, *(api.process for api in apis)]:
        process.kill()
        process.wait(timeout=LIMIT_S)
    for api in apis:
        api.client.close()
    database.close()
    server.close()
    pooled_databases.give_back(url)


def test_a_stream_of_one_api_is_resumed_at_the_other_and_misses_nothing(pairs: Pairs) -> None:
    first, second = (api.client for api in pairs.apis)
    path = f"{JOBS}/{submit(first, **ALONE, training={'epochs': 40})}/events"
    seen = numbers(read(first, path, stop_after=20))
    rest = read(second, path, **{"Last-Event-ID": str(seen[-1])})
    seen += numbers(rest)
    assert (seen, rest[-1]["event"]) == (list(range(1, len(seen) + 1)), "end")


def test_requests_with_one_key_at_both_apis_make_one_job(pairs: Pairs) -> None:
    def post(number: int) -> tuple[int, str]:
        key = {"Idempotency-Key": f"key-{number // 4}"}
        body = {**DIGITS, "name": f"job-{number // 4}", "labels": {"test": "key"}}
        made = pairs.apis[number % 2].client.post(JOBS, json=body, headers=key)
        return made.status_code, made.json()["id"]

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(post, range(4 * KEYS)))
    assert sorted(status for status, _ in made) == [200] * 3 * KEYS + [201] * KEYS
    assert [len({id_ for _, id_ in made[n : n + 4]}) for n in range(0, len(made), 4)] == [1] * KEYS
    listed = pairs.apis[0].client.get(JOBS, params={"label": "test:key", "limit": 200}).json()
    assert {job["id"] for job in listed["items"]} == {id_ for _, id_ in made}


def test_the_jobs_of_a_killed_scheduler_go_on_under_the_other_one(pairs: Pairs) -> None:
    client, history = pairs.apis[0].client, HistoryReads(pairs.database)
    before = submit(client, **LONG)
    wait_for(lambda: history.count_epochs(before) > 5)
    wait_for(lambda: pairs.leader() != 0)
    os.kill(killed := pairs.leader(), signal.SIGKILL)
    reached, after = history.count_epochs(before), submit(client, **LONG)
    wait_for(lambda: history.count_epochs(before) > reached + 5 < history.count_epochs(after))
    assert pairs.leader() not in {0, killed}
    for job_id in (before, after):
        client.post(f"{JOBS}/{job_id}/cancel").raise_for_status()
    wait_for(lambda: not JobReads(pairs.database).unfinished_ids())
    for job_id in (before, after):
        epochs, lines = history.epochs(job_id), pairs.lines(job_id)
        assert [one.epoch for one in epochs] == list(range(len(epochs)))
        # Lines that the killed scheduler had fetched and not stored are lost.
        assert lines == [line for line in expected(len(epochs)) if line in lines]
    started = [one for one in pairs.runtime.started if one[0] in {before, after}]
    assert started == [(before, 1), (after, 1)]
