"""The package of another project as a peer: found by a variable, named with its commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.bench.peers_package import VARIABLE, describe_package, find_clone
from tests.programs import run_program


def test_without_a_clone_the_row_says_that_the_package_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find_clone() is None
    assert describe_package() == f"absent: {VARIABLE} names no clone"


def test_a_folder_without_the_package_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(LookupError, match=r"has no powersgd/powersgd\.py; name a clone of"):
        describe_package()


def test_the_row_names_the_commit_of_the_clone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = tmp_path / "powersgd" / "powersgd.py"
    code.parent.mkdir()
    code.write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    done = run_program([*git, "rev-parse", "HEAD"], check=True)
    assert describe_package() == f"epfml/powersgd at {done.stdout[:12]}"
    code.write_text("changed")
    assert describe_package().endswith(" with changes")
