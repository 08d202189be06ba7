from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from accordion_workers.checkpoint.checkpoint_files import (
    Manifest,
    checkpoint_name,
    find_candidates,
    prune_checkpoints,
    read_manifest,
    read_part,
    write_manifest,
    write_part,
)
from accordion_workers.checkpoint.lineage import Lineage, StartedGroup
from accordion_workers.checkpoint.storage import LocalStorage
from accordion_workers.common.errors import CheckpointError
from accordion_workers.records.contract import Position

FILES = ("rank-0.pt", "rank-1.pt", "shared.pt")


def write(
    root: Path,
    epoch: int,
    *,
    generation: int = 1,
    job_id: str = "job-1",
    objective: float | None = None,
    finished: bool = True,
) -> Manifest:
    storage, name = LocalStorage(root), checkpoint_name(generation, Position(epoch=epoch))
    parts = [
        write_part(storage, f"{name}/{file}", {"values": torch.arange(100), "epoch": epoch})
        for file in FILES
    ]
    manifest = Manifest(
        job_id=job_id,
        name=name,
        epoch=epoch,
        step=0,
        world_size=2,
        objective=objective,
        files=tuple(parts),
    )
    if finished:
        write_manifest(storage, manifest)
    return manifest


def found(root: Path) -> tuple[list[int], list[str]]:
    """Epochs of the checkpoints that are offered, and why others are not."""
    refused: list[str] = []
    offered = find_candidates(LocalStorage(root), "job-1", refused.append)
    return [manifest.epoch for manifest in offered], refused


def test_what_was_written_is_read_back(tmp_path):
    manifest = write(tmp_path, 3)
    assert torch.equal(
        read_part(LocalStorage(tmp_path), manifest, "rank-1.pt")["values"], torch.arange(100)
    )
    assert found(tmp_path) == ([3], [])


def test_sums_and_sizes_are_those_of_the_files(tmp_path):
    manifest = write(tmp_path, 3)
    sizes = {
        file.name: (tmp_path / manifest.name / file.name).stat().st_size for file in manifest.files
    }
    assert {file.name: file.size_bytes for file in manifest.files} == sizes


def test_nothing_is_found_where_nothing_was_ever_saved(tmp_path):
    assert found(tmp_path / "missing") == ([], [])


def test_the_newest_is_offered_first(tmp_path):
    for epoch in (1, 3, 2):
        write(tmp_path, epoch)
    assert found(tmp_path) == ([3, 2, 1], [])


def test_a_checkpoint_without_a_manifest_is_refused(tmp_path):
    write(tmp_path, 1)
    write(tmp_path, 2, finished=False)
    epochs, (reason,) = found(tmp_path)
    assert epochs == [1]
    assert "never finished" in reason


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("length", [0, 1, -1])
def test_a_file_that_was_torn_anywhere_is_refused(tmp_path, name, length):
    manifest = write(tmp_path, 2)
    part = tmp_path / manifest.name / name
    part.write_bytes(part.read_bytes()[:length])
    with pytest.raises(
        CheckpointError, match=rf"{name} does not match its checksum; the one before"
    ):
        read_part(LocalStorage(tmp_path), manifest, name)


def test_one_wrong_bit_is_refused(tmp_path):
    manifest = write(tmp_path, 2)
    part = tmp_path / manifest.name / "rank-0.pt"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        read_part(LocalStorage(tmp_path), manifest, "rank-0.pt")


def test_a_part_of_another_rank_in_its_place_is_refused(tmp_path):
    manifest = write(tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"lacks rank-2\.pt"):
        read_part(LocalStorage(tmp_path), manifest, "rank-2.pt")


def test_a_missing_file_is_refused(tmp_path):
    manifest = write(tmp_path, 2)
    (tmp_path / manifest.name / "rank-0.pt").unlink()
    with pytest.raises(CheckpointError, match=r"lacks rank-0\.pt"):
        read_part(LocalStorage(tmp_path), manifest, "rank-0.pt")


def test_another_jobs_checkpoint_is_refused_and_left_alone(tmp_path):
    foreign = write(tmp_path, 2, job_id="job-2")
    epochs, (reason,) = found(tmp_path)
    assert epochs == []
    assert "belongs to job job-2, not to job-1" in reason
    assert (tmp_path / foreign.name).is_dir()


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', "[]"])
def test_a_damaged_manifest_is_refused(tmp_path, text):
    manifest = write(tmp_path, 2)
    (tmp_path / manifest.name / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="damaged manifest"):
        read_manifest(LocalStorage(tmp_path), manifest.name, "job-1")


def test_a_manifest_without_a_checksum_is_refused(tmp_path):
    written = write(tmp_path, 2)
    text = json.dumps({"manifest": written.model_dump(mode="json")})
    (tmp_path / written.name / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="damaged manifest"):
        read_manifest(LocalStorage(tmp_path), written.name, "job-1")


def test_a_manifest_with_a_flipped_bit_says_what_was_written_or_is_refused(tmp_path):
    written = write(tmp_path, 2, objective=0.25)
    file, storage = tmp_path / written.name / "manifest.json", LocalStorage(tmp_path)
    whole = file.read_bytes()
    for place in range(0, 8 * len(whole), 3):  # two or three bits of every byte
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        file.write_bytes(flipped)
        with suppress(CheckpointError):
            assert read_manifest(storage, written.name, "job-1") == written


def test_another_format_is_refused(tmp_path):
    manifest = write(tmp_path, 2)
    write_manifest(LocalStorage(tmp_path), manifest.model_copy(update={"format": 99}))
    with pytest.raises(CheckpointError, match="has format 99, this version reads 1"):
        read_manifest(LocalStorage(tmp_path), manifest.name, "job-1")


def test_a_storage_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path):
    manifest = write(tmp_path, 2)
    (tmp_path / manifest.name / "manifest.json").unlink()
    (tmp_path / manifest.name / "manifest.json").mkdir()
    with pytest.raises(IsADirectoryError):
        found(tmp_path)


def test_what_a_later_generation_saved_is_newer_though_it_is_less_far(tmp_path):
    write(tmp_path, 9, generation=1)
    write(tmp_path, 4, generation=2)
    assert found(tmp_path) == ([4, 9], [])


def test_names_sort_by_generation_then_by_place_in_the_data():
    places = [(1, 9, 0), (2, 0, 64), (2, 1, 0), (2, 10, 0), (1_000_001, 0, 0)]
    names = [checkpoint_name(g, Position(epoch=e, samples=s)) for g, e, s in places]
    assert names == sorted(names)


def test_only_the_newest_complete_ones_are_kept(tmp_path):
    names = [write(tmp_path, epoch).name for epoch in range(5)]
    prune_checkpoints(LocalStorage(tmp_path), keep=2, newest_name=names[-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == names[-2:]


@pytest.mark.parametrize(("mode", "best"), [("max", 1), ("min", 0), (None, None)])
def test_the_best_one_is_kept_too(tmp_path, mode, best):
    values = [0.1, 0.5, 0.5, 0.3, None]
    names = [write(tmp_path, epoch, objective=value).name for epoch, value in enumerate(values)]
    torn = write(tmp_path, 5, objective=9.0, finished=False)
    for _ in range(2):
        prune_checkpoints(LocalStorage(tmp_path), keep=1, newest_name=torn.name, keep_best=mode)
        kept = sorted(path.name for path in tmp_path.iterdir())
        assert kept == [*([] if best is None else [names[best]]), names[-1]]


def test_a_damaged_manifest_is_not_the_best(tmp_path):
    names = [write(tmp_path, epoch, objective=float(epoch)).name for epoch in range(3)]
    (tmp_path / names[1] / "manifest.json").write_text("{")
    prune_checkpoints(LocalStorage(tmp_path), keep=1, newest_name=names[-1], keep_best="min")
    assert sorted(path.name for path in tmp_path.iterdir()) == [names[0], names[2]]


def test_a_torn_one_neither_counts_nor_stays(tmp_path):
    good = [write(tmp_path, 1).name, write(tmp_path, 3).name]
    write(tmp_path, 2, finished=False)
    prune_checkpoints(LocalStorage(tmp_path), keep=2, newest_name=good[-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == good


def test_a_group_of_the_past_removes_nothing_that_a_later_one_saved(tmp_path):
    later = [write(tmp_path, epoch, generation=2).name for epoch in range(3)]
    zombie = write(tmp_path, 8, generation=1).name
    prune_checkpoints(LocalStorage(tmp_path), keep=1, newest_name=zombie)
    assert sorted(path.name for path in tmp_path.iterdir()) == [zombie, *later]


def test_a_part_that_carries_code_is_not_loaded(tmp_path):
    part = write_part(LocalStorage(tmp_path), "c/rank-0.pt", {"values": Path("x")})
    manifest = Manifest(job_id="job-1", name="c", epoch=0, step=0, world_size=1, files=(part,))
    with pytest.raises(Exception, match="weights_only"):
        read_part(LocalStorage(tmp_path), manifest, "rank-0.pt")


def test_a_disk_that_is_full_is_the_error_that_is_raised(tmp_path):
    """`/dev/full` takes nothing: what the system says must not be lost inside of torch."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "rank-0.pt").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        write_part(LocalStorage(tmp_path), "c/rank-0.pt", {"values": torch.zeros(10**6)})


def test_a_checkpoint_that_says_more_than_the_history_holds_is_refused(tmp_path):
    write(tmp_path, 1)
    write(tmp_path, 2)
    told: list[str] = []
    lineage = Lineage(groups=(StartedGroup(1, None),), epochs=frozenset({0}))
    offered = find_candidates(LocalStorage(tmp_path), "job-1", told.append, lineage=lineage)
    assert [manifest.epoch for manifest in offered] == [1]
    assert "holds 2 epochs, and the job's records lack epoch 1" in told[0]


def test_checkpoints_of_a_group_that_was_given_up_neither_count_nor_stay(tmp_path):
    kept = [write(tmp_path, 1, generation=1), write(tmp_path, 2, generation=2)]
    write(tmp_path, 5, generation=1)
    line = Lineage(groups=(StartedGroup(1, None), StartedGroup(2, kept[0].name)))
    prune_checkpoints(
        LocalStorage(tmp_path), keep=2, newest_name=kept[1].name, survivors=line.survivors
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [manifest.name for manifest in kept]
