"""Which guest run a worker group belongs to, over restarts."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs
import pytest

from accordion_ray.identity import IdentityFile
from accordion_ray.train_context import TrainRun


def run_in(storage: Path, *, is_local: bool = True) -> TrainRun:
    """A run whose storage is a directory, or what stands for an object store."""
    local = pyarrow.fs.LocalFileSystem()
    filesystem = local if is_local else pyarrow.fs.SubTreeFileSystem(str(storage), local)
    path = str(storage / "run") if is_local else "run"
    return TrainRun(name="digits", rank=0, world_size=2, filesystem=filesystem, path=path, max_failures=0)


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
    file.mark_ended(first)
    second = file.claim()
    assert second.job_id != first.job_id
    assert second.generation == 1


def test_names_have_identities_of_their_own(tmp_path: Path) -> None:
    ids = {IdentityFile(run_in(tmp_path), name).claim().job_id for name in ("generator", "team/generator")}
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
