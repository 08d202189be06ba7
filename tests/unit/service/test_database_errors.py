"""Kinds of database errors, of real ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from accordion_service.errors import DatabaseReplaced, Unavailable
from accordion_service.store.engine.database import Database
from accordion_service.store.engine.database_errors import classify_error
from accordion_service.store.engine.postgres import SessionLimits
from accordion_service.store.tables.models import LoginLinkRow
from tests.postgres import Postgres


def counted(database: Database) -> dict[str, float]:
    """Kinds of which there were errors."""
    return {kind: count for kind, count in database.errors.count_by_kind().items() if count}


def change_row(database: Database) -> None:
    with database.write() as session:
        session.add(LoginLinkRow(digest="d", expires_at=1.0))


def test_every_kind_is_counted_from_the_start(database: Database) -> None:
    assert set(database.errors.count_by_kind().values()) == {0}
    change_row(database)
    assert counted(database) == {}


def test_the_text_of_an_error_shows_no_values_of_the_statement(database: Database) -> None:
    with pytest.raises(DBAPIError, match="missing_table") as found, database.write() as session:
        session.execute(text("SELECT :value FROM missing_table"), {"value": "output of a job"})
    assert "output of a job" not in str(found.value)


@pytest.mark.sqlite_only(
    "it shortens the wait for the lock of the file; the test of waits has PostgreSQL's"
)
def test_a_writer_that_waits_in_vain_for_another_one_is_locked_out(database: Database) -> None:
    other = Database(database.url)
    with other.connect_writer() as connection:
        connection.execute(text("PRAGMA busy_timeout = 10"))
    with database.write(), pytest.raises(OperationalError, match="locked"):
        change_row(other)
    assert (counted(other), counted(database)) == ({"locked": 1}, {})
    other.close()


@pytest.mark.sqlite_only("it uses a PRAGMA")
def test_a_database_that_may_not_be_written_is_read_only(database: Database) -> None:
    with database.connect_writer() as connection:
        connection.execute(text("PRAGMA query_only = 1"))
    with pytest.raises(OperationalError, match="readonly"):
        change_row(database)
    assert counted(database) == {"read_only": 1}


def test_a_file_that_cannot_be_opened_is_unreachable(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'no folder' / 'a.db'}")
    with pytest.raises(OperationalError), database.read() as session:
        session.execute(text("SELECT 1"))
    assert counted(database) == {"unreachable": 1}


@pytest.mark.sqlite_only("it damages the database file")
def test_a_file_that_is_replaced_or_holds_garbage_is_damaged(
    database: Database, tmp_path: Path
) -> None:
    change_row(database)
    file = tmp_path / "accordion.db"
    file.rename(tmp_path / "moved")
    with pytest.raises(DatabaseReplaced), database.read() as session:
        session.execute(text("SELECT 1"))
    file.write_bytes(b"garbage" * 1000)
    other = Database(database.url)
    with pytest.raises(DBAPIError), other.read() as session:
        session.execute(text("SELECT 1"))
    assert counted(database) == counted(other) == {"damaged": 1}


def test_a_statement_without_sense_is_another_error(database: Database) -> None:
    with pytest.raises(DBAPIError), database.read() as session:
        session.execute(text("SELECT nonsense"))
    assert counted(database) == {"other": 1}


def test_a_database_without_its_tables_was_created_anew(empty_url: str) -> None:
    database = Database(empty_url)
    with pytest.raises(DBAPIError), database.read() as session:
        session.execute(text("SELECT * FROM jobs"))
    assert counted(database) == {"no_tables": 1}
    database.close()


def test_a_row_that_is_there_twice_is_no_error_of_the_database(database: Database) -> None:
    change_row(database)
    with pytest.raises(IntegrityError):
        change_row(database)
    assert counted(database) == {}


def test_an_error_that_is_none_of_the_database_has_no_kind() -> None:
    assert classify_error(Unavailable("too many requests")) is None
    assert classify_error(PoolTimeout("no connection in 30 s")) == "timeout"


def test_waits_that_take_too_long_on_postgresql_are_told_apart(postgres_url: str) -> None:
    first = Database(postgres_url)
    second = Database(postgres_url, limits=SessionLimits(lock_s=0.1, statement_s=0.5))
    with first.write() as session:
        session.execute(text("LOCK TABLE leases"))
        with pytest.raises(DBAPIError, match="lock timeout"), second.write() as waiting:
            waiting.execute(text("SELECT * FROM leases"))
    with pytest.raises(DBAPIError, match="statement timeout"), second.read() as session:
        session.execute(text("SELECT pg_sleep(60)"))
    with pytest.raises(DBAPIError, match="read-only"), second.read() as session:
        session.execute(text("DELETE FROM leases"))
    assert counted(second) == {"locked": 1, "timeout": 1, "read_only": 1}
    first.close()
    second.close()


def test_a_server_that_is_gone_is_unreachable(postgres: Postgres, postgres_url: str) -> None:
    database = Database(postgres_url)
    with pytest.raises(DBAPIError):
        write_on_ended_connection(database, postgres)
    nobody = Database(postgres_url.replace(f":{postgres.port}/", ":1/"))
    with pytest.raises(OperationalError), nobody.read() as session:
        session.execute(text("SELECT 1"))
    assert counted(database) == counted(nobody) == {"unreachable": 1}
    database.close()


def write_on_ended_connection(database: Database, postgres: Postgres) -> None:
    with database.write() as session:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        postgres.execute(f"SELECT pg_terminate_backend({pid})")
        session.execute(text("SELECT 1"))
