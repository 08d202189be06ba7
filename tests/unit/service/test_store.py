"""The database: migrations, writers that take turns, one scheduler at a time."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Integer, column, inspect, select, table, text

from accordion_service.domain.access import FULL_ACCESS
from accordion_service.errors import StartError
from accordion_service.store.engine.database import Database
from accordion_service.store.migrations import alembic_config, current, head, upgrade
from accordion_service.store.tables.models import Base, JobRow
from accordion_service.store.writes import jobs as job_submission
from accordion_service.store.writes.copying import check_target
from accordion_service.store.writes.idempotency import Idempotency, find_replay
from accordion_service.store.writes.jobs import JobSubmission
from accordion_service.store.writes.leases import Lease, is_newest_token
from accordion_workers.records.contract import JobSpec


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    upgrade(database_url)
    database = Database(database_url)
    yield database
    database.close()


def test_the_migrations_make_exactly_the_tables_of_the_models(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []
    assert current(database) == head()


def migrate_database(database: Database, step: Callable[..., None], revision: str) -> None:
    with database.connect_writer() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        step(config, revision)


def describe_tables(database: Database) -> dict[str, Any]:
    """Columns and indexes of each table."""
    with database.engine.connect() as connection:
        found = inspect(connection)
        return {
            table: (
                sorted(
                    (c["name"], str(c["type"]), c["nullable"]) for c in found.get_columns(table)
                ),
                sorted(str(index["name"]) for index in found.get_indexes(table)),
            )
            for table in found.get_table_names()
        }


def test_every_migration_can_be_undone_and_done_again(empty_url: str) -> None:
    database = Database(empty_url)
    script = ScriptDirectory.from_config(alembic_config())
    revisions = [one.revision for one in script.walk_revisions()][::-1]
    before: dict[str, Any] = {}
    for revision in revisions:
        migrate_database(database, command.upgrade, revision)
        before[revision] = describe_tables(database)
    spec = JobSpec.model_validate({"task": {"name": "digits-mlp"}})
    JobSubmission(database, lambda: 1.0, FULL_ACCESS).submit(spec, None)
    Lease(database, owner="h" * 190, clock=lambda: 0.0, lease_s=3.0).hold()
    for revision in revisions[-2::-1]:
        migrate_database(database, command.downgrade, revision)
        assert describe_tables(database) == before[revision], revision
    migrate_database(database, command.downgrade, "base")
    assert describe_tables(database).keys() == {"alembic_version"}
    upgrade(empty_url)
    assert describe_tables(database) == before[head()]
    database.close()


def test_the_scripts_are_found_below_a_folder_with_a_percent_sign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "accordion_service.store.migrations.__file__", "/opt/50%off/migrations/__init__.py"
    )
    assert alembic_config().get_main_option("script_location") == "/opt/50%off/migrations"


def test_two_processes_may_migrate_at_once(empty_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(upgrade, [empty_url] * 4))
    assert current(Database(empty_url)) == head()


def test_threads_may_migrate_databases_of_their_own_at_once(tmp_path: Path) -> None:
    together = Barrier(3)

    def make(name: str) -> None:
        together.wait()
        upgrade(f"sqlite:///{tmp_path / name}")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(make, ("one.db", "two.db", "three.db")))


def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    def open_and_write(url: str) -> None:
        database = Database(url)
        with database.connect_writer() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS opened (n INTEGER)"))
        database.close()

    with ThreadPoolExecutor(8) as pool:
        for new in range(60):  # without waiting for the write-ahead log, one round in ten fails
            list(pool.map(open_and_write, [f"sqlite:///{tmp_path}/{new}.db"] * 8))


def test_writers_of_a_row_take_turns_and_lose_nothing(database: Database) -> None:
    with database.write() as session:
        session.execute(text("CREATE TABLE counter (n INTEGER)"))
        session.execute(text("INSERT INTO counter VALUES (0)"))
    # SQLite locks the whole database, and no row.
    read = select(column("n", Integer)).select_from(table("counter")).with_for_update()

    def count(_: int) -> None:
        with database.write() as session:
            n = session.scalar(read)
            session.execute(text("UPDATE counter SET n = :n"), {"n": n + 1})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(80)))
    with database.read() as session:
        assert session.scalar(text("SELECT n FROM counter")) == 80


def test_a_write_that_raises_leaves_nothing(database: Database) -> None:
    def fail() -> None:
        with database.write() as session:
            session.execute(text("CREATE TABLE half (n INTEGER)"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.engine.connect() as connection:
        assert not connection.dialect.has_table(connection, "half")


def test_a_reader_does_not_wait_for_a_writer(database: Database) -> None:
    with database.write() as writer, database.read() as reader:
        writer.execute(text("CREATE TABLE slow (n INTEGER)"))
        assert reader.scalar(text("SELECT count(*) FROM jobs")) == 0


@pytest.mark.sqlite_only("it locks the whole database file")
def test_a_reader_does_not_wait_for_many_writers_who_wait(
    database: Database, tmp_path: Path
) -> None:
    with database.write() as session:
        session.execute(text("CREATE TABLE counter (n INTEGER)"))
    begin, many = Barrier(31), 30

    def add(n: int) -> None:
        begin.wait()
        with database.write() as session:
            session.execute(text("INSERT INTO counter VALUES (:n)"), {"n": n})

    def count() -> int:
        with database.read() as session:
            return session.scalar(text("SELECT count(*) FROM counter")) or 0

    def count_often() -> int:
        begin.wait()
        return sum(count() for _ in range(300))

    other = sqlite3.connect(tmp_path / "accordion.db", isolation_level=None)
    with ThreadPoolExecutor(many + 1) as pool:
        other.execute("BEGIN IMMEDIATE")
        writers = [pool.submit(add, n) for n in range(many)]
        try:
            assert pool.submit(count_often).result(timeout=20) == 0
            assert not any(writer.done() for writer in writers)
        finally:
            other.close()
        assert [writer.result() for writer in writers] == [None] * many
    assert count() == many


def test_of_many_schedulers_one_holds_the_lease(database: Database) -> None:
    now = [0.0]
    leases = [Lease(database, owner=str(n), clock=lambda: now[0], lease_s=3.0) for n in range(4)]
    seen = []
    for moment in range(24):
        now[0] = float(moment)
        alive = leases[moment // 6 :]
        seen.append([token for token in (lease.hold() for lease in alive) if token is not None])
    assert all(len(tokens) <= 1 for tokens in seen)
    assert sorted({tokens[0] for tokens in seen if tokens}) == [1, 2, 3, 4]


def test_a_token_that_was_taken_over_is_worth_nothing(database: Database) -> None:
    now = [0.0]
    old, new = (
        Lease(database, owner=name, clock=lambda: now[0], lease_s=3.0) for name in ("old", "new")
    )
    first = old.hold()
    now[0] = 3.0
    second = new.hold()
    assert first is not None
    assert second is not None
    with database.write() as session:
        assert not is_newest_token(session, first)
        assert is_newest_token(session, second)
    assert old.hold() is None


def test_late_holder_continues_if_no_other_took_the_lease(database: Database) -> None:
    now = [0.0]
    lease = Lease(database, owner="a", clock=lambda: now[0], lease_s=3.0)
    first = lease.hold()
    now[0] = 60.0
    assert lease.hold() == first


@pytest.mark.parametrize(
    "url", ["sqlite:///{}/file/a.db", "postgresql+psycopg://me:hidden@127.0.0.1:1/d"]
)
def test_a_database_that_cannot_be_used_is_named_without_its_password(
    tmp_path: Path, url: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StartError, match=r"the database .* cannot be used \(.*ACCORDION_DATABASE_URL right"
    ) as raised:
        upgrade(url.format(tmp_path))
    assert "hidden" not in str(raised.value)


def test_an_older_version_does_not_start_on_the_tables_of_a_newer_one(empty_url: str) -> None:
    upgrade(empty_url)
    database = Database(empty_url)
    with database.connect_writer() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'r9999'"))
    with pytest.raises(StartError, match=rf"version r9999; this one knows {head()} and older"):
        upgrade(empty_url)
    assert current(database) == "r9999"
    database.close()


@pytest.mark.parametrize("revision", ["0001", "0002", "0032"])
def test_a_database_from_before_the_first_release_is_refused_and_stays_as_it_is(
    empty_url: str, revision: str
) -> None:
    upgrade(empty_url)
    database = Database(empty_url)
    with database.connect_writer() as connection:
        connection.execute(text("DROP TABLE installation"))
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    before = describe_tables(database)
    refused = r"made before the first release: start with a new home \(ACCORDION_HOME=\.\.\.\)"
    with pytest.raises(StartError, match=refused):
        upgrade(empty_url)
    with pytest.raises(StartError, match=refused):
        check_target(empty_url, 0.0)
    assert (current(database), describe_tables(database)) == (revision, before)
    database.close()


def test_a_key_that_another_writer_stores_meanwhile_is_answered_with_its_job(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, key = (
        JobSpec.model_validate({"task": {"name": "digits-mlp"}}),
        Idempotency(key="k", scope="s", body_hash="h"),
    )
    first, _ = JobSubmission(database, lambda: 1.0, FULL_ACCESS).submit(spec, key)
    look = iter([lambda *_: None])
    monkeypatch.setattr(
        job_submission, "find_replay", lambda *given: next(look, find_replay)(*given)
    )
    again, was_replayed = JobSubmission(database, lambda: 1.0, FULL_ACCESS).submit(spec, key)
    assert (again.id, was_replayed) == (first.id, True)


def test_a_metric_that_is_no_number_is_kept(database: Database) -> None:
    job, _ = JobSubmission(database, lambda: 1.0, FULL_ACCESS).submit(
        JobSpec.model_validate({"task": {"name": "digits-mlp"}}), None
    )
    with database.write() as session:
        session.get_one(JobRow, job.id).metrics = {"loss": math.nan, "best": -math.inf, "last": 0.5}
    with database.read() as session:
        metrics = session.get_one(JobRow, job.id).metrics
    assert math.isnan(metrics.pop("loss"))
    assert metrics == {"best": -math.inf, "last": 0.5}
