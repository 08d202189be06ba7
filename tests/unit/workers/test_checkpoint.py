from __future__ import annotations

from pathlib import Path

import pytest
import torch

from workers.checkpoint import (
    Manifest,
    check,
    checkpoint_name,
    newest,
    prune,
    read_part,
    write_manifest,
    write_part,
)
from workers.errors import CheckpointError
from workers.sampler import Position


def write(root: Path, epoch: int, *, generation: int = 1, job_id: str = "job-1", finished: bool = True) -> Path:
    directory = root / checkpoint_name(generation, Position(epoch=epoch))
    files = (write_part(directory, "rank-0.pt", {"values": torch.arange(100), "epoch": epoch}),)
    manifest = Manifest(job_id=job_id, name=directory.name, epoch=epoch, step=0, world_size=1, files=files)
    if finished:
        write_manifest(directory, manifest)
    return directory


def found(root: Path) -> tuple[int | None, list[str]]:
    refused: list[str] = []
    manifest = newest(root, "job-1", refused.append)
    return (manifest.epoch if manifest else None), refused


def test_what_was_written_is_read_back(tmp_path):
    directory = write(tmp_path, 3)
    assert torch.equal(read_part(directory, "rank-0.pt")["values"], torch.arange(100))
    assert found(tmp_path) == (3, [])


def test_nothing_is_found_where_nothing_was_ever_saved(tmp_path):
    assert found(tmp_path / "missing") == (None, [])


def test_a_checkpoint_without_a_manifest_is_refused_and_the_one_before_is_taken(tmp_path):
    write(tmp_path, 1)
    write(tmp_path, 2, finished=False)
    epoch, (reason,) = found(tmp_path)
    assert epoch == 1
    assert "never finished" in reason


def test_a_file_that_was_cut_short_is_refused_and_the_one_before_is_taken(tmp_path):
    write(tmp_path, 1)
    part = write(tmp_path, 2) / "rank-0.pt"
    part.write_bytes(part.read_bytes()[:-1])
    epoch, (reason,) = found(tmp_path)
    assert epoch == 1
    assert "rank-0.pt does not match its checksum" in reason


def test_one_wrong_bit_is_refused(tmp_path):
    part = write(tmp_path, 2) / "rank-0.pt"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        check(part.parent, "job-1")


def test_a_missing_file_is_refused(tmp_path):
    directory = write(tmp_path, 2)
    (directory / "rank-0.pt").unlink()
    with pytest.raises(CheckpointError, match=r"lacks rank-0\.pt"):
        check(directory, "job-1")


def test_another_jobs_checkpoint_is_refused_and_left_alone(tmp_path):
    directory = write(tmp_path, 2, job_id="job-2")
    epoch, (reason,) = found(tmp_path)
    assert epoch is None
    assert "belongs to job job-2, not to job-1" in reason
    assert directory.is_dir()


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', "[]"])
def test_a_damaged_manifest_is_refused(tmp_path, text):
    directory = write(tmp_path, 2)
    (directory / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="damaged manifest"):
        check(directory, "job-1")


def test_another_format_is_refused(tmp_path):
    directory = write(tmp_path, 2)
    manifest = check(directory, "job-1").model_copy(update={"format": 99})
    write_manifest(directory, manifest)
    with pytest.raises(CheckpointError, match="has format 99, this version reads 1"):
        check(directory, "job-1")


def test_what_a_later_generation_saved_is_newer_though_it_is_less_far(tmp_path):
    write(tmp_path, 9, generation=1)
    write(tmp_path, 4, generation=2)
    assert found(tmp_path) == (4, [])


def test_names_sort_by_generation_then_by_place_in_the_data():
    places = [(1, 9, 0), (2, 0, 64), (2, 1, 0), (2, 10, 0), (1_000_001, 0, 0)]
    names = [checkpoint_name(g, Position(epoch=e, samples=s)) for g, e, s in places]
    assert names == sorted(names)


def test_only_the_newest_complete_ones_are_kept(tmp_path):
    names = [write(tmp_path, epoch).name for epoch in range(5)]
    prune(tmp_path, keep=2, newest_name=names[-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == names[-2:]


def test_a_torn_one_neither_counts_nor_stays(tmp_path):
    good = [write(tmp_path, 1), write(tmp_path, 3)]
    write(tmp_path, 2, finished=False)
    prune(tmp_path, keep=2, newest_name=good[-1].name)
    assert sorted(tmp_path.iterdir()) == good


def test_a_group_of_the_past_removes_nothing_that_a_later_one_saved(tmp_path):
    later = [write(tmp_path, epoch, generation=2) for epoch in range(3)]
    zombie = write(tmp_path, 8, generation=1)
    prune(tmp_path, keep=1, newest_name=zombie.name)
    assert sorted(tmp_path.iterdir()) == [zombie, *later]


def test_a_part_that_carries_code_is_not_loaded(tmp_path):
    torch.save({"values": Path("x")}, tmp_path / "rank-0.pt")
    with pytest.raises(Exception, match="weights_only"):
        read_part(tmp_path, "rank-0.pt")
