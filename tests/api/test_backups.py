"""Backups of a service that runs, and moves from one kind of database to another."""

from __future__ import annotations

import io
import json
import tarfile
import threading
import time
import zipfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Connection, Engine, event, select, update

from accordion_service.api.app import create_app
from accordion_service.backups.backups import (
    BackupContents,
    move_database,
    restore_backup,
    write_backup,
)
from accordion_service.domain.jobs.statuses import Status
from accordion_service.errors import StartError
from accordion_service.settings.settings import Settings, load_settings
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import Base, JobRow
from accordion_service.store.writes.copying import copy_database, count_rows
from tests.api.conftest import LOCAL
from tests.api.world import World
from tests.pooled_databases import PooledDatabases

PATIENCE_S = 30.0
LONG = {"training": {"epochs": 400}}
REFUSALS = {
    "other": "is not a backup",
    "newer": "made by a newer version",
    "unreleased": "made before the first release: start with a new home .* 'accordion submit'",
}


@pytest.fixture(params=["sqlite", "postgresql"])
def new_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Settings of a service that nobody has used, on either kind of database."""
    home = tmp_path / "other"
    if request.param == "sqlite":
        yield load_settings(home=home)
        return
    databases: PooledDatabases = request.getfixturevalue("pooled_databases")
    url = databases.take()
    yield load_settings(home=home, database_url=url)
    databases.give_back(url)


def used_service(world: World, client: TestClient) -> str:
    """Give the service some of everything; return the ID of a job that trains."""
    job_id = world.submit(**LONG, workers={"min": 2, "max": 2})
    world.train(job_id)
    world.turn(8)
    client.post("/api/v1/users", json={"name": "ada"})
    client.post("/api/v1/tokens", json={"label": "laptop", "user": "ada"})
    client.put("/api/v1/quotas", json={"user": "*", "workers": 8})
    client.put("/api/v1/secrets/hf-token", json={"value": "hf_abc"})
    client.post("/api/v1/webhooks", json={"url": "https://8.8.8.8/", "statuses": ["LOST"]})
    client.post(f"/api/v1/jobs/{job_id}/overrides", json={"level": "low", "reason": "ä\u2028"})
    world.turn(4)
    return job_id


def test_a_backup_has_all_rows_and_a_restored_service_goes_on(
    world: World, client: TestClient, tmp_path: Path, new_settings: Settings
) -> None:
    job_id = used_service(world, client)
    file = tmp_path / "backup.tar.gz"
    made = write_backup(world.settings, file, world.clock())
    assert made.rows == count_rows(world.settings.database)
    assert (made.rows["jobs"], made.rows["users"], made.rows["quotas"]) == (1, 2, 1)
    assert made.rows["webhooks"] == 1
    assert file.stat().st_mode & 0o077 == 0
    before = client.get(f"/api/v1/jobs/{job_id}").json()
    audit = client.get("/api/v1/audit").json()["items"]

    for workers in (1, 2, 1):  # the workers know newer orders than the backup has
        world.resize(job_id, 1, workers)
        world.turn(4)
    restored = restore_backup(new_settings, file, world.clock())
    assert restored.rows == made.rows == count_rows(new_settings.database)
    with TestClient(create_app(new_settings, world.clock), base_url=LOCAL) as other:
        assert other.get(f"/api/v1/jobs/{job_id}").json() == before
        assert other.get("/api/v1/audit").json()["items"] == audit
        # New rows are numbered after the restored ones.
        assert other.post("/api/v1/users", json={"name": "bob"}).status_code == 201
        newest = other.get("/api/v1/audit").json()["items"][0]
        assert newest["id"] > audit[0]["id"]
    world.move_to(new_settings)
    world.turn_until(lambda: world.job(job_id).status == Status.RUNNING)
    world.pause(job_id)
    assert world.reach(job_id, Status.PAUSED).message.startswith("paused; its state is saved")
    assert world.job(job_id).attempt == before["attempt"]


def test_a_database_moves_with_all_rows(
    world: World, client: TestClient, new_settings: Settings
) -> None:
    used_service(world, client)
    with pytest.raises(StartError, match=r"works on the database .*; stop the service first"):
        move_database(world.settings, new_settings.database, world.clock())
    later = world.clock() + world.settings.lease_s + 1.0
    counts = move_database(world.settings, new_settings.database, later)
    assert counts == count_rows(world.settings.database) == count_rows(new_settings.database)
    with pytest.raises(StartError, match=r"has been used \(rows: .*jobs 1"):
        move_database(world.settings, new_settings.database, later)


def test_uploaded_code_is_in_a_backup(
    world: World, client: TestClient, tmp_path: Path, new_settings: Settings
) -> None:
    sha256 = client.post(
        "/api/v1/code", content=pack("mine.py"), headers={"Content-Type": "application/zip"}
    ).json()["sha256"]
    file = tmp_path / "backup.tar.gz"
    assert write_backup(world.settings, file, world.clock()).code == [f"{sha256}.zip"]
    restore_backup(new_settings, file, world.clock())
    restored = new_settings.code / f"{sha256}.zip"
    assert restored.read_bytes() == (world.settings.code / restored.name).read_bytes()


def pack(name: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, "x = 1\n")
    return packed.getvalue()


def test_a_backup_notes_the_storage_of_the_jobs_not_that_of_its_own_settings(
    world: World, tmp_path: Path
) -> None:
    elsewhere = world.settings.model_copy(update={"storage": "/elsewhere"})
    nothing = write_backup(elsewhere, tmp_path / "nothing.tar.gz", world.clock())
    world.train(world.submit(**LONG, checkpoint={"storage": "s3://bucket"}))
    own = write_backup(elsewhere, tmp_path / "own.tar.gz", world.clock())
    world.train(world.submit(**LONG))
    made = write_backup(elsewhere, tmp_path / "backup.tar.gz", world.clock())
    assert (nothing.storage, own.storage) == ("", "")
    assert made.storage == str(world.settings.home / "storage")


@pytest.mark.parametrize(
    ("first_seen_at", "second_seen_at", "storage"), [(2.0, 1.0, "/b"), (1.0, 2.0, "/a")]
)
def test_a_backup_notes_the_storage_of_the_job_whose_workers_started_last(
    world: World, tmp_path: Path, first_seen_at: float, second_seen_at: float, storage: str
) -> None:
    for root, seen_at in (("/b", first_seen_at), ("/a", second_seen_at)):
        job_id = world.submit()
        used = {"place": f"{root}/{job_id}/checkpoints", "seen_at": seen_at}
        with world.database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(storage=used))
    made = write_backup(world.settings, tmp_path / "backup.tar.gz", world.clock())
    assert made.storage == storage


def test_a_backup_is_of_one_moment_while_jobs_are_submitted(world: World, tmp_path: Path) -> None:
    world.train(world.submit(**LONG))
    before, submitted = count_rows(world.settings.database), []

    def submit(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        is_copy = ".backup-" in str(connection.engine.url)
        if is_copy and statement.startswith("INSERT INTO jobs") and not submitted:
            submitted.append(world.submit(**LONG))

    event.listen(Engine, "before_cursor_execute", submit)
    try:
        made = write_backup(world.settings, tmp_path / "backup.tar.gz", world.clock())
    finally:
        event.remove(Engine, "before_cursor_execute", submit)
    assert made.rows == before
    assert count_rows(world.settings.database)["jobs"] == before["jobs"] + len(submitted) == 2


def test_what_happens_after_a_backup_is_not_in_it(
    world: World, tmp_path: Path, new_settings: Settings
) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    written = world.history.events(job_id, after=0, limit=10_000)
    file = tmp_path / "backup.tar.gz"
    write_backup(world.settings, file, world.clock())
    world.turn(8)
    restore_backup(new_settings, file, world.clock())
    other = Database(new_settings.database)
    with other.read() as session:
        table = Base.metadata.tables["events"]
        restored = session.scalars(select(table.c.seq).order_by(table.c.seq)).all()
    other.close()
    assert restored == [event.seq for event in written]


def test_of_two_backups_to_one_file_the_later_one_is_refused_and_the_file_is_whole(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "backup.tar.gz"
    copying, made, pool = threading.Event(), threading.Event(), ThreadPoolExecutor(1)

    def copy_later(*given: Any, **more: Any) -> dict[str, int]:
        copying.set()
        made.wait(PATIENCE_S)
        return copy_database(*given, **more)

    def copy_first(*given: Any, **more: Any) -> dict[str, int]:
        monkeypatch.setattr("accordion_service.backups.backups.copy_database", copy_later)
        later.append(pool.submit(write_backup, world.settings, file, world.clock()))
        copying.wait(PATIENCE_S)
        return copy_database(*given, **more)

    later: list[Future[BackupContents]] = []
    monkeypatch.setattr("accordion_service.backups.backups.copy_database", copy_first)
    contents = write_backup(world.settings, file, world.clock())
    monkeypatch.setattr("accordion_service.backups.backups.copy_database", copy_database)
    restored = load_settings(home=tmp_path / "restored")
    try:
        assert restore_backup(restored, file, world.clock()).sha256 == contents.sha256
    finally:
        made.set()
    with pytest.raises(StartError, match="exists; name a new file"):
        later[0].result()
    assert list(tmp_path.glob("*backup*")) + list(tmp_path.glob(".*backup*")) == [file]


def test_a_file_that_exists_is_not_overwritten(world: World, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar.gz"
    file.write_text("precious")
    with pytest.raises(StartError, match="exists; name a new file"):
        write_backup(world.settings, file, world.clock())
    assert file.read_text() == "precious"
    with pytest.raises(StartError, match="cannot be written"):
        write_backup(world.settings, tmp_path / "missing" / "backup.tar.gz", world.clock())
    assert sorted(path.name for path in tmp_path.glob("*backup*")) == ["backup.tar.gz"]


@pytest.mark.parametrize(
    "damage", ["cut", "flipped", "other", "newer", "unreleased", "no database", "missing"]
)
def test_what_is_no_backup_is_refused_and_leaves_nothing(
    world: World, tmp_path: Path, new_settings: Settings, damage: str
) -> None:
    file = tmp_path / "backup.tar.gz"
    write_backup(world.settings, file, time.time())
    change_backup(file, damage)
    before = count_rows(new_settings.database) if new_settings.database_url else {}
    with pytest.raises(StartError, match=REFUSALS.get(damage, "cannot be read|damaged")):
        restore_backup(new_settings, file, time.time())
    assert list(new_settings.home.glob(".restore-*")) == []
    if before:
        assert count_rows(new_settings.database) == before
    else:
        assert not (new_settings.home / "accordion.db").exists()


def change_backup(file: Path, damage: str) -> None:
    """Damage a backup, or replace it by another archive."""
    packed = file.read_bytes()
    match damage:
        case "cut":
            file.write_bytes(packed[: len(packed) // 2])
        case "flipped":
            middle = len(packed) // 2
            file.write_bytes(packed[:middle] + bytes([packed[middle] ^ 1]) + packed[middle + 1 :])
        case "missing":
            file.unlink()
        case "other":
            rewrite(file, {"other.txt": b"x"})
        case "no database":
            members = read_members(file)
            rewrite(file, {"contents.json": members["contents.json"]})
        case "newer" | "unreleased":
            members, revision = read_members(file), {"newer": "r9999", "unreleased": "0032"}[damage]
            contents = json.loads(members["contents.json"]) | {"revision": revision}
            rewrite(file, {**members, "contents.json": json.dumps(contents).encode()})


def read_members(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as archive:
        found = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        return {name: opened.read() for name, opened in found.items() if opened is not None}


def rewrite(file: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(file, "w:gz") as archive:
        for name, packed in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(packed)
            archive.addfile(entry, io.BytesIO(packed))


def test_a_service_that_runs_is_not_restored_into(
    world: World, tmp_path: Path, new_settings: Settings
) -> None:
    world.submit(**LONG)
    world.turn(2)
    file = tmp_path / "backup.tar.gz"
    write_backup(world.settings, file, world.clock())
    with pytest.raises(StartError, match="stop the service first"):
        restore_backup(world.settings, file, world.clock())
    later = world.clock() + world.settings.lease_s + 1.0
    with pytest.raises(StartError, match="has been used"):
        restore_backup(world.settings, file, later)


def test_a_home_without_a_database_is_named(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "empty")
    with pytest.raises(StartError, match=r"there is no database .*/empty/accordion.db"):
        write_backup(settings, tmp_path / "backup.tar.gz", time.time())
    assert not (tmp_path / "empty" / "accordion.db").exists()
