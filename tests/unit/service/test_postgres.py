"""PostgreSQL: waits for locks are bounded, readers have their own connections, and long
names fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from time import time
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, PendingRollbackError

from accordion_service.domain.access import FULL_ACCESS
from accordion_service.errors import Conflict, StartError
from accordion_service.store.engine.database import Database
from accordion_service.store.engine.postgres import SessionLimits
from accordion_service.store.migrations import upgrade
from accordion_service.store.reads.job_list import JobFilter
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.tables.models import EndedSessionRow
from accordion_service.store.writes import caller_writes
from accordion_service.store.writes.audit import append_audit
from accordion_service.store.writes.ended_sessions import end_session, is_session_ended
from accordion_service.store.writes.jobs import JobSubmission
from accordion_service.store.writes.leases import Lease
from accordion_service.store.writes.secrets import SecretStore
from accordion_workers.records.contract import JobSpec
from tests.postgres import Postgres

SPEC = JobSpec.model_validate({"task": {"name": "digits-mlp"}})
MANY = 25


@pytest.fixture
def connect(postgres_url: str) -> Iterator[Callable[..., Database]]:
    """Connects one more process to the database of the test."""
    opened: list[Database] = []

    def connect(limits: SessionLimits | None = None) -> Database:
        opened.append(Database(postgres_url, limits=limits or SessionLimits()))
        return opened[-1]

    yield connect
    for database in opened:
        database.close()


def test_a_scheduler_that_is_frozen_within_a_transaction_is_succeeded(
    connect: Callable[..., Database],
) -> None:
    frozen, successor = connect(), connect()
    assert Lease(frozen, owner="old", clock=lambda: 0.0, lease_s=3.0).hold() == 1
    with suppress(PendingRollbackError), frozen.write() as session:
        assert session.scalar(text("SHOW idle_in_transaction_session_timeout")) == "10s"
        session.execute(text("SELECT * FROM leases FOR UPDATE"))
        session.execute(text("SET idle_in_transaction_session_timeout = '0.2s'"))
        assert Lease(successor, owner="new", clock=lambda: 9.0, lease_s=3.0).hold() == 2
        with pytest.raises(DBAPIError, match="idle-in-transaction"):
            session.execute(text("UPDATE leases SET token = 1"))
    with successor.read() as session:
        assert session.scalar(text("SELECT token FROM leases")) == 2


def test_waiting_for_a_lock_or_an_answer_times_out(connect: Callable[..., Database]) -> None:
    first, second = connect(), connect(SessionLimits(lock_s=0.1, statement_s=0.5))
    Lease(first, owner="old", clock=lambda: 0.0, lease_s=3.0).hold()
    with first.write() as session:
        session.execute(text("SELECT * FROM leases FOR UPDATE"))
        with pytest.raises(DBAPIError, match="lock timeout"):
            Lease(second, owner="new", clock=lambda: 9.0, lease_s=3.0).hold()
    with pytest.raises(DBAPIError, match="statement timeout"), second.read() as reader:
        reader.execute(text("SELECT pg_sleep(60)"))


def test_both_ends_notice_that_the_other_machine_is_gone(connect: Callable[..., Database]) -> None:
    with connect().read() as session:
        driver = session.connection().connection.driver_connection
        assert driver is not None
        asked = driver.info.get_parameters()
        shown = {
            name: session.scalar(text(f"SHOW {name}"))
            for name in ("tcp_keepalives_idle", "tcp_user_timeout")
        }
    assert (asked["keepalives_idle"], asked["tcp_user_timeout"]) == ("10", "25000")
    assert shown == {"tcp_keepalives_idle": "10", "tcp_user_timeout": "25000"}


def test_a_parameter_of_the_url_wins(postgres_url: str) -> None:
    database = Database(f"{postgres_url}?options=-c%20statement_timeout%3D7s&keepalives_idle=77")
    with database.read() as session:
        assert session.scalar(text("SHOW statement_timeout")) == "7s"
        assert session.scalar(text("SHOW lock_timeout")) == "20s"
    database.close()


def test_a_migration_may_take_longer_than_any_request(connect: Callable[..., Database]) -> None:
    with connect(SessionLimits(statement_s=0.1)).connect_writer() as connection:
        connection.execute(text("SELECT pg_sleep(0.2)"))


def test_readers_are_served_while_many_writers_wait_for_a_row(
    connect: Callable[..., Database],
) -> None:
    database, other, begun = connect(), connect(), Event()
    job, _ = JobSubmission(database, lambda: 1.0, FULL_ACCESS).submit(SPEC, None)

    def write(number: int) -> None:
        if number == MANY - 1:
            begun.set()
        with database.write() as session:
            session.execute(text("UPDATE jobs SET version = version + 1"))

    with ThreadPoolExecutor(MANY) as pool, other.write() as holder:
        holder.execute(text("SELECT * FROM jobs FOR UPDATE"))
        writers = [pool.submit(write, number) for number in range(MANY)]
        assert begun.wait(timeout=30)
        for _ in range(20):
            assert [row.id for row in JobReads(database).find(JobFilter())] == [job.id]
        assert not any(writer.done() for writer in writers)
        holder.commit()
        assert all(writer.result(timeout=30) is None for writer in writers)


def test_a_reading_session_sees_one_state(connect: Callable[..., Database]) -> None:
    database = connect()
    with database.read() as session:
        assert session.scalar(text("SELECT count(*) FROM jobs")) == 0
        JobSubmission(database, lambda: 1.0, FULL_ACCESS).submit(SPEC, None)
        assert session.scalar(text("SELECT count(*) FROM jobs")) == 0


def test_a_name_of_190_characters_is_kept(connect: Callable[..., Database]) -> None:
    database, owner = connect(), "h" * 190
    assert Lease(database, owner=owner, clock=lambda: 0.0, lease_s=3.0).hold() == 1
    with database.read() as session:
        assert session.scalar(text("SELECT owner FROM leases")) == owner


def test_a_job_without_a_name_gets_one_that_can_be_looked_up(
    connect: Callable[..., Database],
) -> None:
    database = connect()
    spec = JobSpec.model_validate({"task": {"name": f"mine:{'Long' * 47}"}, "code": "0" * 64})
    job, _ = JobSubmission(database, lambda: 1.0, FULL_ACCESS).submit(spec, None)
    assert len(job.name) <= 63
    assert [row.id for row in JobReads(database).find(JobFilter(name=job.name))] == [job.id]


def test_two_logouts_at_once_end_a_session(connect: Callable[..., Database]) -> None:
    first, second = connect(), connect()
    with ThreadPoolExecutor(1) as pool, first.write() as session:
        session.add(EndedSessionRow(digest="d", expires_at=9.0))
        session.flush()
        other = pool.submit(end_session, second, "d", expires_at=9.0, now=1.0)
        with first.read() as reader:
            while not reader.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                assert not other.done()
        session.commit()
        assert other.result(timeout=30) is None
    assert is_session_ended(second, "d")


def test_a_secret_is_kept_while_a_job_that_uses_it_is_stored(
    connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = connect(), connect()
    SecretStore(first, lambda: 1.0).set_secret(FULL_ACCESS, "hf", "x")
    spec = {"task": {"name": "digits-mlp"}, "env": {"HF": {"secret": "hf"}}}

    def wait_for_removal(*given: Any, **more: Any) -> None:
        monkeypatch.undo()
        with first.read() as reader:
            removals.append(pool.submit(SecretStore(second, time).remove_secret, FULL_ACCESS, "hf"))
            while not reader.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                assert not removals[0].done()
        append_audit(*given, **more)

    removals: list[Future[Any]] = []
    monkeypatch.setattr(caller_writes, "append_audit", wait_for_removal)
    with ThreadPoolExecutor(1) as pool:
        JobSubmission(first, lambda: 1.0, FULL_ACCESS).submit(JobSpec.model_validate(spec), None)
        with pytest.raises(Conflict, match="1 unfinished job uses the secret"):
            removals[0].result(timeout=30)


def test_the_server_runs_as_an_ordinary_user(postgres: Postgres) -> None:
    assert postgres.execute("SHOW data_directory")[0][0].startswith("/tmp/pg")


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_text_is_refused(
    postgres: Postgres, encoding: str
) -> None:
    name = f"of_{encoding.lower()}"
    postgres.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(StartError, match=rf"has the encoding {encoding}.*with the encoding UTF8"):
        upgrade(postgres.url(name))
    postgres.drop_database(postgres.url(name))
