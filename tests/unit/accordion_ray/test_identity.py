"""Which guest run a worker group belongs to, over restarts."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.fs
import pytest

from accordion_ray.identity import KEPT_DAYS, GuestState, Identity, IdentityFile
from accordion_ray.train_context import GuestContext
from accordion_workers.hub.journal import Journal
from accordion_workers.records.contract import GUEST_ATTEMPT, EndRecord, FailureRecord


def run_in(storage: Path, *, is_local: bool = True, fit: str = "1") -> GuestContext:
    """A run whose storage is a directory, or what stands for an object store."""
    local = pyarrow.fs.LocalFileSystem()
    filesystem = local if is_local else pyarrow.fs.SubTreeFileSystem(str(storage), local)
    path = str(storage / "run") if is_local else "run"
    return GuestContext(
        name="digits",
        rank=0,
        world_size=2,
        filesystem=filesystem,
        path=path,
        max_failures=0,
        fit=fit,
    )


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


def write_record(identity: Identity, payload: EndRecord | FailureRecord) -> None:
    journal = Journal(
        identity.records,
        attempt=GUEST_ATTEMPT,
        generation=identity.generation,
        clock=lambda: 0.0,
    )
    journal.write(payload)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_restarted_run_goes_on_in_a_new_generation(tmp_path: Path, is_local: bool) -> None:
    file = IdentityFile(run_in(tmp_path, is_local=is_local), "digits")
    first, second = file.claim(), file.claim()
    assert first.job_id == second.job_id
    assert (first.generation, second.generation) == (1, 2)
    assert (second.records / "records").is_dir()


@pytest.mark.parametrize("is_local", [True, False])
def test_a_run_after_the_end_of_another_is_a_new_one(tmp_path: Path, is_local: bool) -> None:
    file = IdentityFile(run_in(tmp_path, is_local=is_local), "digits")
    first = file.claim()
    file.save(first, replace(first.state, ended=True))
    second = file.claim()
    assert second.job_id != first.job_id
    assert second.generation == 1


def test_names_have_identities_of_their_own(tmp_path: Path) -> None:
    ids = {
        IdentityFile(run_in(tmp_path), name).claim().job_id
        for name in ("generator", "team/generator")
    }
    assert len(ids) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job_id": "a"}'])
def test_a_torn_file_gives_a_new_identity(tmp_path: Path, text: str) -> None:
    file = IdentityFile(run_in(tmp_path), "digits")
    before = file.claim()
    (tmp_path / "run/accordion/digits/guest.json").write_text(text)
    assert file.claim().job_id != before.job_id


def test_a_storage_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the directory should be")
    with pytest.raises(OSError, match="directory"):
        IdentityFile(run_in(tmp_path), "digits").claim()


@pytest.mark.parametrize("is_local", [True, False])
def test_a_recorded_end_counts_where_the_process_died_before_the_mark(
    tmp_path: Path, is_local: bool
) -> None:
    file = IdentityFile(run_in(tmp_path, is_local=is_local), "digits")
    first = file.claim()
    write_record(first, EndRecord(status="SUCCEEDED", reason="COMPLETED"))
    assert file.claim().job_id != first.job_id


@pytest.mark.parametrize("is_local", [True, False])
def test_a_worker_group_finds_what_the_one_before_left(tmp_path: Path, is_local: bool) -> None:
    file = IdentityFile(run_in(tmp_path, is_local=is_local), "digits")
    first = file.claim()
    left = GuestState(world_size=2, step=7, fit="1", failures=1, installation="ab")
    file.save(first, left)
    write_record(first, FailureRecord(cause="job", rank=0, message="x"))
    second = file.claim()
    assert second.state == left
    assert second.records == first.records


def test_failures_of_an_earlier_call_of_fit_do_not_count(tmp_path: Path) -> None:
    file = IdentityFile(run_in(tmp_path), "digits")
    first = file.claim()
    file.save(first, replace(first.state, failures=3, step=7))
    again = IdentityFile(run_in(tmp_path, fit="2"), "digits").claim()
    assert again.job_id == first.job_id
    assert again.state == GuestState(step=7, fit="2")


@pytest.mark.parametrize("is_local", [True, False])
def test_an_older_worker_group_overwrites_nothing(tmp_path: Path, is_local: bool) -> None:
    file = IdentityFile(run_in(tmp_path, is_local=is_local), "digits")
    first, second = file.claim(), file.claim()
    file.save(first, replace(first.state, ended=True))
    assert file.claim().job_id == second.job_id


def test_only_a_run_that_was_interrupted_is_a_restart(tmp_path: Path) -> None:
    file = IdentityFile(run_in(tmp_path), "digits")
    assert not file.is_restart()
    first = file.claim()
    assert file.is_restart()
    file.save(first, replace(first.state, ended=True))
    assert not file.is_restart()


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = IdentityFile(run_in(tmp_path), "digits")
    first = file.claim()
    (tmp_path / "run/accordion/digits/guest.json.draft").mkdir()
    with pytest.raises(OSError, match="directory"):
        file.save(first, replace(first.state, step=7))
    (tmp_path / "run/accordion/digits/guest.json.draft").rmdir()
    assert file.claim().job_id == first.job_id


def test_old_records_in_temporary_directories_are_removed(tmp_path: Path) -> None:
    old = IdentityFile(run_in(tmp_path, is_local=False), "old").claim().records
    young = IdentityFile(run_in(tmp_path, is_local=False), "young").claim().records
    long_ago = time.time() - (KEPT_DAYS + 1) * 24 * 3600
    os.utime(old / "records", (long_ago, long_ago))
    IdentityFile(run_in(tmp_path, is_local=False), "newest").claim()
    assert (old.exists(), young.exists()) == (False, True)
