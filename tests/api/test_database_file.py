"""A database file that is removed, replaced or damaged while the service runs: no job is accepted
and lost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient

from accordion_service.errors import StartError, Unavailable
from accordion_service.store.engine.database import Database
from accordion_service.store.migrations import upgrade
from accordion_service.store.tables.models import LoginLinkRow
from tests.api.test_bad_input import JOBS, problem_of
from tests.api.test_health import checks
from tests.api.world import DIGITS, World

pytestmark = pytest.mark.sqlite_only("it damages the file of the database")


def _replace(file: Path) -> None:
    copy = file.with_suffix(".copy")
    copy.write_bytes(file.read_bytes())
    copy.replace(file)


def _overwrite(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(b"garbage" * 1000)


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "removed": (lambda file: file.unlink(), "was removed"),
    "replaced": (_replace, "was replaced by another file"),
    "truncated": (lambda file: file.write_bytes(b""), "was overwritten"),
    "overwritten": (_overwrite, "was overwritten"),
    "log": (lambda file: file.with_name(f"{file.name}-wal").unlink(), "write-ahead log"),
    "all": (
        lambda file: [part.unlink() for part in file.parent.glob("accordion.db*")],
        "was removed",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_database_that_is_gone_takes_no_job_and_says_what_to_do(
    client: TestClient, world: World, fault: str
) -> None:
    damage, sentence = FAULTS[fault]
    assert client.post(JOBS, json=DIGITS).status_code == 201
    damage(world.settings.home / "accordion.db")
    detail = problem_of(client.post(JOBS, json=DIGITS), 503)["detail"]
    assert sentence in detail
    assert "put the database or a backup of it back" in detail
    problem_of(client.get(JOBS), 503)
    assert not checks(client)["database"][0]


def test_an_older_database_that_is_copied_over_the_open_one_is_reported(
    client: TestClient, world: World
) -> None:
    file = world.settings.home / "accordion.db"
    _write_log_back(file)
    older = file.read_bytes()
    assert client.post(JOBS, json=DIGITS).status_code == 201
    _write_log_back(file)
    assert checks(client)["database"][0]
    file.write_bytes(older)
    for _ in range(2):
        detail = problem_of(client.post(JOBS, json=DIGITS), 503)["detail"]
        assert "was overwritten by an older copy" in detail
        assert not checks(client)["database"][0]
        # A checkpoint of the remaining log does not make it whole again.
        file.write_bytes(older[:60] + b"\x7f" * 4 + older[64:])


def _write_log_back(file: Path) -> None:
    """Write everything that is committed into the database file itself."""
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0


def test_database_that_is_moved_back_works_again(client: TestClient, world: World) -> None:
    file = world.settings.home / "accordion.db"
    assert client.post(JOBS, json=DIGITS).status_code == 201
    file.rename(file.with_suffix(".away"))
    problem_of(client.post(JOBS, json=DIGITS), 503)
    file.with_suffix(".away").rename(file)
    assert client.post(JOBS, json=DIGITS).status_code == 201
    assert len(client.get(JOBS).json()["items"]) == 2


def test_a_damaged_page_is_reported_as_damage_and_not_as_a_crash(
    client: TestClient, world: World
) -> None:
    world.submit()
    world.database.close()
    client.app.state.accordion.database.close()
    file = world.settings.home / "accordion.db"
    file.write_bytes(file.read_bytes()[:4096] + b"\xff" * (file.stat().st_size - 4096))
    assert "is damaged" in problem_of(client.get(JOBS), 503)["detail"]


def test_a_service_does_not_start_on_a_file_that_is_no_database(
    tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "accordion.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(StartError, match=r"cannot be used .file is not a database"):
        upgrade(database_url)


def test_the_scheduler_leaves_the_cluster_alone_while_its_database_is_gone(world: World) -> None:
    job_id = world.submit()
    world.train(job_id)
    (world.settings.home / "accordion.db").unlink()
    with pytest.raises(Exception, match="was removed"):
        world.turn(8)
    assert world.runtime.removed == []
    assert not (world.settings.home / "accordion.db").exists()


def test_an_idle_process_reports_an_older_copy_that_is_newer_than_its_last_request(
    tmp_path: Path, database_url: str
) -> None:
    file = tmp_path / "accordion.db"
    with closing(Database(database_url)) as idle, closing(Database(database_url)) as busy:
        _add_links(idle, 3)
        _write_log_back(file)
        _add_links(busy, 3)
        _write_log_back(file)
        backup = file.read_bytes()
        _add_links(busy, 3)
        _write_log_back(file)
        idle.watch_file(_Stop(after=1))
        file.write_bytes(backup)
        with pytest.raises(Unavailable, match="was overwritten by an older copy"):
            _add_links(idle, 1)


class _Stop(Event):
    """Set after some intervals, which pass at once."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._num_left = after

    def wait(self, timeout: float | None = None) -> bool:
        self._num_left -= 1
        return self._num_left < 0


def _add_links(database: Database, number: int) -> None:
    for _ in range(number):
        with database.write() as session:
            session.add(LoginLinkRow(digest=uuid4().hex, expires_at=1.0))


def test_the_files_of_a_new_database_are_readable_by_their_owner_only(
    client: TestClient, world: World
) -> None:
    assert client.post(JOBS, json=DIGITS).status_code == 201
    files = list(world.settings.home.glob("accordion.db*"))
    assert len(files) == 3
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
