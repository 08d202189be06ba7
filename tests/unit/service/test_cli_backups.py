"""`accordion backup`, `restore` and `move-database`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.store.migrations import upgrade
from tests.unit.service.conftest import Accordion


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Home directory of the command line, with a database that nobody has used."""
    home = tmp_path / "home"
    upgrade(f"sqlite:///{home / 'accordion.db'}")
    return home


def test_a_backup_is_written_and_restored(
    alone: Accordion, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "backup.tar.gz"
    said = alone("backup", file)
    assert said.code == 0, said.err
    assert said.out == f"{file}: 0 jobs, 1 user, 0 events, 0 uploads of code\n"
    again = alone("backup", file)
    assert (again.code, again.err) == (2, f"accordion: {file} exists; name a new file\n")
    monkeypatch.setenv("ACCORDION_HOME", str(tmp_path / "new"))
    restored = alone("restore", file)
    assert restored.code == 0, restored.err
    assert re.match(
        r"restored the state of \d{4}-\d\d-\d\d \d\d:\d\d: 0 jobs, 1 user", restored.out
    )
    assert f"in {tmp_path / 'new'}/storage, and were in {home}/storage;" in restored.err
    assert alone("backup", tmp_path / "second.tar.gz", "--json").json()["rows"]["users"] == 1


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
