"""`accordion submit --code`: what is packed, and that the job names what was uploaded."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accordion_client.commands.cli_app import run_command
from accordion_client.commands.pack import pack_folder
from accordion_service.errors import SettingsError
from accordion_workers.user_code.archive import check_archive
from tests.api.conftest import Live, serve_live

SPEC = "name: own\ncode: ./code\ntask: {name: 'mine:Mine'}\ntraining: {epochs: 1}\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    yield from serve_live(tmp_path_factory.mktemp("service"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: Live) -> Path:
    """A folder with a job file and code, and the environment of a client of the service."""
    monkeypatch.setenv("ACCORDION_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ACCORDION_URL", service.url)
    (tmp_path / "code" / "lib").mkdir(parents=True)
    (tmp_path / "code" / "mine.py").write_text("class Mine: ...\n")
    (tmp_path / "code" / "lib" / "more.py").write_text("X = 1\n")
    (tmp_path / "job.yaml").write_text(SPEC)
    return tmp_path


def names(archive: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(archive)) as zipped:
        return zipped.namelist()


def submitted(capfd: pytest.CaptureFixture[str], *arguments: object) -> dict:
    assert run_command(["submit", *map(str, arguments), "--json"]) == 0
    return json.loads(capfd.readouterr().out)


def test_what_is_no_code_of_ones_own_is_left_out(folder: Path) -> None:
    code = folder / "code"
    for place in (".git", "__pycache__", "lib/__pycache__", ".venv", "venv", "my-python"):
        (code / place).mkdir(parents=True)
        (code / place / "x.py").write_text("")
    (code / "my-python" / "pyvenv.cfg").write_text("")
    (code / ".env").write_text("SECRET=1")
    assert names(pack_folder(code)) == ["lib/more.py", "mine.py"]


def make_fifo(code: Path) -> None:
    os.mkfifo(code / "odd.py")


def make_broken_link(code: Path) -> None:
    (code / "odd.py").symlink_to("nowhere.py")


def make_link_out(code: Path) -> None:
    (code.parent / "secret.txt").write_text("SECRET=1")
    (code / "odd.py").symlink_to("../secret.txt")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (make_fifo, "odd.py is no regular file"),
        (make_broken_link, "odd.py links to nowhere.py, which does not exist"),
        (make_link_out, "odd.py links to a file outside of the folder"),
    ],
)
def test_what_cannot_be_packed_is_refused_with_its_name(
    folder: Path, make: Callable[[Path], None], why: str
) -> None:
    make(folder / "code")
    with pytest.raises(SettingsError, match=f"code .*: {why}"):
        pack_folder(folder / "code")


def test_a_link_within_the_folder_is_packed_as_its_file(folder: Path) -> None:
    (folder / "code" / "again.py").symlink_to("mine.py")
    assert names(pack_folder(folder / "code")) == ["again.py", "lib/more.py", "mine.py"]


def test_the_same_files_are_the_same_archive_whenever_they_are_packed(folder: Path) -> None:
    before = pack_folder(folder / "code")
    os.utime(folder / "code" / "mine.py", (0, 0))
    (folder / "code" / "mine.py").chmod(0o700)
    assert pack_folder(folder / "code") == before


def test_what_is_packed_is_accepted(folder: Path) -> None:
    entries = check_archive(io.BytesIO(pack_folder(folder / "code")))
    assert [entry.name for entry in entries] == ["lib/more.py", "mine.py"]


def test_a_job_file_names_its_code_relative_to_itself(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = submitted(capfd, folder / "job.yaml")
    assert job["spec"]["code"] == hashlib.sha256(pack_folder(folder / "code")).hexdigest()


def test_a_flag_wins_over_the_job_file(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "other").mkdir()
    (folder / "other" / "mine.py").write_text("class Mine: pass\n")
    job = submitted(capfd, folder / "job.yaml", "--code", folder / "other")
    assert job["spec"]["code"] == hashlib.sha256(pack_folder(folder / "other")).hexdigest()


def test_an_archive_is_uploaded_as_it_is(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.zip").write_bytes(pack_folder(folder / "code"))
    job = submitted(capfd, folder / "job.yaml", "--code", folder / "mine.zip")
    assert job["spec"]["code"] == hashlib.sha256((folder / "mine.zip").read_bytes()).hexdigest()


def test_an_upload_can_be_named_again(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sha256 = submitted(capfd, folder / "job.yaml")["spec"]["code"]
    (folder / "job.yaml").write_text(SPEC.replace("./code", sha256))
    assert submitted(capfd, folder / "job.yaml")["spec"]["code"] == sha256


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("nowhere", "code nowhere cannot be read (No such file or directory)"),
        ("code/mine.py", "this is no zip file"),
    ],
)
def test_code_that_is_none_is_told_with_the_way_out(
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    sentence: str,
) -> None:
    monkeypatch.chdir(folder)
    assert run_command(["submit", "job.yaml", "--code", path]) == 2
    said = capfd.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
