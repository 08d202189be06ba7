"""`accordion backup`, `restore` and `move-database`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from accordion_service.backups import secret_check
from accordion_service.domain.access import FULL_ACCESS, Role
from accordion_service.settings.home import Home
from accordion_service.settings.secret_box import create_secret_box
from accordion_service.settings.settings import load_settings
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.accounts import AccountStore
from accordion_service.store.writes.copying import copy_database
from accordion_service.store.writes.jobs import JobSubmission
from accordion_service.store.writes.secrets import SecretStore
from accordion_workers.records.contract import JobSpec
from tests.programs import run_program
from tests.unit.service.conftest import Accordion


@pytest.fixture
def home(tmp_path: Path, migrated_file: Path) -> Path:
    """Home directory of the command line, with a database that nobody has used."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    shutil.copy(migrated_file, home / "accordion.db")
    return home


def test_a_backup_is_written_and_restored(
    alone: Accordion, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "backup.tar.gz"
    said = alone("backup", file)
    assert said.code == 0, said.err
    written, left_out = said.out.splitlines()
    assert written == f"{file}: 0 jobs, 1 user, 0 events, 0 uploads of code"
    assert left_out.startswith("not in it: checkpoints and other files on the storage, files of ")
    assert f"the key of secrets ({home}/secrets.key): copy the key as well" in left_out
    again = alone("backup", file)
    assert (again.code, again.err) == (2, f"accordion: {file} exists; name a new file\n")
    monkeypatch.setenv("ACCORDION_HOME", str(tmp_path / "new"))
    restored = alone("restore", file)
    assert restored.code == 0, restored.err
    assert re.match(
        r"restored the state of \d{4}-\d\d-\d\d \d\d:\d\d: 0 jobs, 1 user", restored.out
    )
    assert restored.err == ""
    assert alone("backup", tmp_path / "second.tar.gz", "--json").json()["rows"]["users"] == 1


def test_a_restore_prints_the_numbers_that_the_backup_printed(
    alone: Accordion, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_checkpoints(home, str(tmp_path))
    database = Database(load_settings(home=home).database)
    AccountStore(database, lambda: 1.0).add_user(FULL_ACCESS, "ada", Role.EDITOR)
    database.close()
    made = read_numbers(alone("backup", tmp_path / "backup.tar.gz").out)
    assert made.startswith("1 job, 2 users, ")
    monkeypatch.setenv("ACCORDION_HOME", str(tmp_path / "new"))
    assert read_numbers(alone("restore", tmp_path / "backup.tar.gz").out) == made
    assert read_numbers(alone("backup", tmp_path / "again.tar.gz").out) == made


ENDED_HALFWAY = """
import os, signal, sys, accordion_service.backups.backups
from accordion_client.commands.cli_app import run_command

def end(source, target, **_):
    open(target.removeprefix("sqlite:///"), "w").close()
    os.kill(os.getpid(), int(sys.argv[1]))

accordion_service.backups.backups.copy_database = end
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
sys.exit(run_command(["backup", sys.argv[2]]))
"""


def end_backup(home: Path, file: Path, number: int) -> None:
    """Begin a backup that gets a signal while it copies the database."""
    command = [sys.executable, "-c", ENDED_HALFWAY, str(number), str(file)]
    environment = {**os.environ, "ACCORDION_HOME": str(home)}
    done = run_program(command, env=environment)
    assert done.returncode == (-number if number == signal.SIGKILL else 128 + number), done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_backup_that_is_ended_leaves_nothing(home: Path, tmp_path: Path, number: int) -> None:
    Home(home).make()
    before = sorted(tmp_path.rglob("*"))
    end_backup(home, tmp_path / "backup.tar.gz", number)
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before] == []


@pytest.mark.usefixtures("home")
def test_a_backup_under_nohup_outlives_its_terminal(
    alone: Accordion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang_up(*given: Any, **more: Any) -> dict[str, int]:
        os.kill(os.getpid(), signal.SIGHUP)
        return copy_database(*given, **more)

    monkeypatch.setattr("accordion_service.backups.backups.copy_database", hang_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert alone("backup", tmp_path / "backup.tar.gz").code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_a_killed_backup_left_goes_with_the_next_one(
    alone: Accordion, home: Path, tmp_path: Path
) -> None:
    Home(home).make()
    file, before = tmp_path / "backup.tar.gz", sorted(home.iterdir())
    end_backup(home, file, signal.SIGKILL)
    assert not file.exists()
    assert sorted(home.iterdir()) != before
    assert alone("backup", file).code == 0
    assert sorted(home.iterdir()) == before
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == [file.name]


def read_numbers(printed: str) -> str:
    """Return what the first line says is in a backup."""
    return printed.splitlines()[0].rpartition(": ")[2]


@pytest.mark.parametrize("is_same", [True, False])
def test_a_restore_warns_of_another_storage_than_the_jobs_had(
    alone: Accordion, home: Path, monkeypatch: pytest.MonkeyPatch, *, is_same: bool
) -> None:
    keep_checkpoints(home, "/mnt/shared")
    alone("backup", home.parent / "backup.tar.gz")
    monkeypatch.setenv("ACCORDION_HOME", str(home.parent / "new"))
    monkeypatch.setenv("ACCORDION_STORAGE", "/mnt/shared/" if is_same else "/elsewhere")
    restored = alone("restore", home.parent / "backup.tar.gz")
    told = "checkpoints are looked for in /elsewhere, and were in /mnt/shared;"
    assert (told in restored.err) == (not is_same)
    assert bool(restored.err) == (not is_same)


def keep_checkpoints(home: Path, root: str) -> None:
    """Add a job that keeps its checkpoints below this directory."""
    database = Database(load_settings(home=home).database)
    spec = JobSpec.model_validate({"task": {"name": "digits-mlp"}})
    job, _ = JobSubmission(database, lambda: 1.0, FULL_ACCESS).submit(spec, None)
    used = {"place": f"{root}/{job.id}/checkpoints", "workers": 1, "hosts": 1, "seen_at": 1.0}
    with database.write() as session:
        session.execute(update(JobRow).values(storage=used))
    database.close()


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, "the service has no key, "),
        ("another key that is long enough for it", "encrypted with another key than the service"),
        ("short", "ACCORDION_SECRETS_KEY_FILE is "),
        ("the right one", ""),
    ],
)
def test_secrets_that_cannot_be_decrypted_are_told_after_a_restore_and_by_the_doctor(
    alone: Accordion, home: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, reason: str
) -> None:
    set_secret(home)
    file, new = home.parent / "backup.tar.gz", home.parent / "new"
    alone("backup", file)
    monkeypatch.setenv("ACCORDION_HOME", str(new))
    if key is not None:
        new.mkdir(mode=0o700)
        right = (home / "secrets.key").read_text()
        (new / "secrets.key").write_text(right if key == "the right one" else key)
    restored, found = alone("restore", file), alone("doctor", "--json").json()["findings"]
    assert restored.code == 0
    told = f"1 of 1 secrets of jobs and webhooks cannot be decrypted ({reason}"
    assert (told in restored.err) == bool(reason)
    way_out = f"copy the secrets.key of the service that encrypted them to {new}/secrets.key, or"
    assert (way_out in restored.err) == bool(reason)
    messages = [item["message"] for item in found if item["name"] == "secrets"]
    assert [message.startswith(told) for message in messages] == [True] * bool(reason)


def test_a_home_from_before_the_first_release_is_refused_with_the_way_out(
    alone: Accordion, home: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(home / "accordion.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '0032'")
    refusal = f"the database sqlite:///{home}/accordion.db was made before the first release: "
    findings = alone("doctor", "--json").json()["findings"]
    [found] = [one for one in findings if one["name"] == "database"]
    assert (found["state"], found["message"][: len(refusal)]) == ("bad", refusal)
    target = f"sqlite:///{tmp_path}/new.db"
    for command in (("backup", tmp_path / "backup.tar.gz"), ("move-database", target)):
        said = alone(*command)
        assert (said.code, said.err) == (2, f"accordion: {found['message']}\n")
    assert not (tmp_path / "backup.tar.gz").exists()


@pytest.mark.parametrize(
    ("variable", "way_out"),
    [
        ("", "copy the secrets.key of the service that encrypted them to {home}/secrets.key, or"),
        ("_FILE", "copy the secrets.key of the service that encrypted them to {home}/key, or name"),
        ("text", "give the key of the service that encrypted them in ACCORDION_SECRETS_KEY."),
    ],
)
def test_the_doctor_says_where_a_lost_key_belongs(
    alone: Accordion, home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, way_out: str
) -> None:
    set_secret(home)
    (home / "secrets.key").unlink()
    (home / "key").write_text("another key that is long enough for it")
    if variable:
        name = f"ACCORDION_SECRETS_KEY{variable.removeprefix('text')}"
        monkeypatch.setenv(name, str(home / "key"))
    told = alone("doctor").out
    assert way_out.format(home=home) in told
    assert ("'accordion secret set NAME --force'" in told) == (not variable)


def test_the_doctor_advises_no_return_to_a_key_that_others_were_set_without(
    alone: Accordion, home: Path
) -> None:
    set_secret(home, "lost-1", "lost-2")
    (home / "secrets.key").unlink()
    set_secret(home, "new")
    told = alone("doctor").out
    assert "2 of 3 secrets of jobs and webhooks cannot be decrypted (encrypted with another" in told
    assert (
        "their users set them again with 'accordion secret set' and 'accordion webhook"
        " rotate-secret': secret lost-1 of admin, secret lost-2 of admin. Keep the present key,"
        " which decrypts the other one: an older one in its place would not\n"
    ) in told
    assert "copy the" not in told


def test_the_doctor_names_some_of_many_secrets_that_cannot_be_decrypted(
    alone: Accordion, home: Path
) -> None:
    set_secret(home, *(f"lost-{number}" for number in range(7)))
    (home / "secrets.key").unlink()
    set_secret(home, "new-1", "new-2")
    told = alone("doctor").out
    assert "secret lost-4 of admin and 2 more. Keep the present key" in told
    assert "lost-5" not in told
    assert "which decrypts the 2 others" in told


def test_the_doctor_says_if_the_database_may_not_be_read(
    alone: Accordion, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests may run as root, who may read all files: a name that is too long fails alike.
    file = home / ("x" * 300) / "accordion.db"
    monkeypatch.setenv("ACCORDION_DATABASE_URL", f"sqlite:///{file}")
    found = alone("doctor", "--json").json()["findings"]
    [told] = [item for item in found if item["name"] == "secrets"]
    assert told["state"] == "note"
    assert told["message"].startswith(f"not checked: {file} cannot be read (File name too long)")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OperationalError("SELECT", {}, Exception("connection lost\nDETAIL")), "connection lost"),
        (PermissionError(13, "Permission denied"), "[Errno 13] Permission denied"),
    ],
)
def test_a_restore_succeeds_although_the_secrets_cannot_be_checked(
    alone: Accordion, home: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(_: object) -> str:
        raise error

    alone("backup", home.parent / "backup.tar.gz")
    monkeypatch.setenv("ACCORDION_HOME", str(home.parent / "new"))
    monkeypatch.setattr(secret_check, "describe_unreadable", fail)
    restored = alone("restore", home.parent / "backup.tar.gz")
    assert (restored.code, restored.err) == (
        0,
        f"accordion: the secrets could not be checked ({reason}); 'accordion doctor' checks them\n",
    )


def set_secret(home: Path, *names: str) -> None:
    """Set secrets of the admin, encrypted with the key of the home directory, or a new one."""
    settings = load_settings(home=home)
    database = Database(settings.database)
    for name in names or ("hf-token",):
        encrypted = create_secret_box(settings).encrypt("hf_abc")
        SecretStore(database, lambda: 1.0).set_secret(FULL_ACCESS, name, encrypted)
    database.close()


def test_what_cannot_be_restored_is_refused_in_one_line(
    alone: Accordion, home: Path, tmp_path: Path
) -> None:
    missing = alone("restore", tmp_path / "missing.tar.gz")
    assert (missing.code, len(missing.err.splitlines())) == (2, 1)
    assert "cannot be read as a backup (No such file or directory)" in missing.err


def test_a_database_is_moved_with_its_rows_counted(
    alone: Accordion, home: Path, tmp_path: Path
) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    said = alone("move-database", target)
    assert said.code == 0, said.err
    counts = {line.split()[0]: line.split()[1] for line in said.out.splitlines()[:-1]}
    assert (counts["users"], counts["installation"], counts["jobs"]) == ("1", "1", "0")
    assert said.out.endswith(f"all rows arrived in {target}\n")
    wrong = alone("move-database", "mysql://host/name")
    assert wrong.code == 2
    assert "accordion: the URL: its scheme is mysql; known are sqlite and postgresql" in wrong.err
    empty = alone("move-database", "")
    assert (empty.code, empty.err) == (2, "accordion: the URL is ''; give that of a database\n")
