"""Liveness, readiness and metrics of the service."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest
from fastapi.testclient import TestClient
from psycopg.errors import DataCorrupted, DiskFull, ReadOnlySqlTransaction
from sqlalchemy import text
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.writes.jobs import JobSubmission
from tests.api.world import DIGITS, World

FULL = "the disk of the database is full; free some space"
READ_ONLY = "the database accepts no changes; make its disk writable, or let"
DAMAGED = "the database is damaged; stop the service, restore a backup"

LACKS_TABLES = "lacks the tables of the service, so it was created anew; restart api and scheduler"


def checks(client: TestClient) -> dict[str, tuple[bool, str]]:
    return {
        name: (check["ok"], check["message"])
        for name, check in client.get("/readyz").json()["checks"].items()
    }


def test_a_service_with_a_scheduler_and_a_cluster_is_ready(
    client: TestClient, world: World
) -> None:
    world.turn()
    assert client.get("/readyz").status_code == 200
    assert all(ok for ok, _ in checks(client).values())


def test_a_service_without_a_scheduler_says_what_to_start(client: TestClient) -> None:
    assert client.get("/readyz").status_code == 503
    assert checks(client)["scheduler"] == (
        False,
        "has never run; start 'accordion scheduler'",
    )


def test_a_scheduler_that_fell_silent_makes_the_service_unready(
    client: TestClient, world: World
) -> None:
    world.turn()
    world.clock.now += world.settings.heartbeat_stale_s + 1
    ok, message = checks(client)["scheduler"]
    assert not ok
    assert "the limit is 10 s" in message


def test_a_cluster_that_does_not_answer_makes_the_service_unready(
    client: TestClient, world: World
) -> None:
    world.turn()
    world.runtime.down = True
    world.turn()
    assert checks(client)["ray"] == (False, "the Ray cluster does not respond; is it running?")


@pytest.mark.sqlite_only(
    "a view of the tables needs them; the test of kinds has PostgreSQL's error"
)
def test_a_database_that_was_created_anew_is_told_from_one_that_is_down(
    client: TestClient, world: World
) -> None:
    with world.database.connect_writer() as connection:
        for table in ("leases", "jobs"):
            connection.execute(text(f"ALTER TABLE {table} RENAME TO {table}_of_before"))
    ok, message = checks(client)["database"]
    assert (ok, LACKS_TABLES in message) == (False, True)
    answer = client.get("/api/v1/jobs")
    assert (answer.status_code, LACKS_TABLES in answer.json()["detail"]) == (503, True)


def test_liveness_reads_neither_database_nor_cluster(client: TestClient, world: World) -> None:
    world.database.engine.dispose()
    assert client.get("/livez").json() == {"alive": True}


def test_an_ended_job_leaves_the_metrics_after_its_retention(
    client: TestClient, world: World
) -> None:
    job = world.finish(world.submit())
    assert job.id in client.get("/metrics").text
    world.clock.now += world.settings.metrics_retention_s + 1
    assert job.id not in client.get("/metrics").text


def test_unknown_methods_create_no_new_series(client: TestClient) -> None:
    for method in ("FOO", "BAR"):
        client.request(method, "/livez")
    exposed = client.get("/metrics").text
    assert 'method="other"' in exposed
    assert "FOO" not in exposed


def test_a_statement_the_database_rejects_is_our_error_and_not_an_outage(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_nonsense(jobs: JobReads, _: object) -> None:
        with jobs.database.read() as session:
            session.execute(text("SELECT nonsense"))

    monkeypatch.setattr(JobReads, "find", send_nonsense)
    answer = client.get("/api/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")


def _sqlite_error(code: int) -> Exception:
    error = sqlite3.OperationalError("as SQLite reports it")
    error.sqlite_errorcode = code
    return OperationalError("INSERT", {}, error)


def _postgres_error(error: Exception) -> Exception:
    return DBAPIError.instance("INSERT", {}, error, psycopg.Error, dialect=PGDialect_psycopg())


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            PoolTimeout("QueuePool limit of size 1 overflow 0 reached"),
            "the database does not respond; try again",
        ),
        (_sqlite_error(sqlite3.SQLITE_FULL), FULL),
        (_postgres_error(DiskFull("could not extend file")), FULL),
        (_sqlite_error(sqlite3.SQLITE_READONLY), READ_ONLY),
        (_postgres_error(ReadOnlySqlTransaction("cannot execute INSERT")), READ_ONLY),
        (_sqlite_error(sqlite3.SQLITE_CORRUPT), DAMAGED),
        (_postgres_error(DataCorrupted("invalid page in block 0")), DAMAGED),
    ],
)
@pytest.mark.sqlite_only("errors of both databases are raised without one")
def test_a_database_that_takes_nothing_now_is_no_fault_of_the_request(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, *, error: Exception, sentence: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(JobSubmission, "submit", fail)
    answer = client.post("/api/v1/jobs", json=DIGITS)
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["code"]) == (
        503,
        "2",
        "unavailable",
    )
    assert sentence in answer.json()["detail"]
