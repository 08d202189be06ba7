"""What the threads that write a checkpoint tell each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from torch.distributed import HashStore

from accordion_workers.checkpoint import async_save as upload
from accordion_workers.checkpoint.async_save import AsyncSave, PartResult, SaveGroup, Snapshot
from accordion_workers.checkpoint.checkpoint_files import Manifest, find_candidates, read_part
from accordion_workers.checkpoint.storage import LocalStorage

NAME = "g1-e0-s64"
TOLD_S = 30.0
"""A thread that is not done by then never will be."""


class Group:
    """Two ranks that share a store and a directory, and what rank 0 was told."""

    def __init__(self, root: Path) -> None:
        self.storage = LocalStorage(root)
        self.store = HashStore()
        self.done: list[Manifest] = []
        self.failed: list[str] = []
        self.superseded = False

    def upload(
        self, rank: int, *, number: int = 1, storage: LocalStorage | None = None
    ) -> AsyncSave:
        manifest = Manifest(job_id="job-1", name=NAME, epoch=0, step=1, world_size=2)
        parts = {f"rank-{rank}.pt": {"values": torch.full((3,), float(number))}}
        return AsyncSave(
            Snapshot(manifest=manifest, parts=parts, keep=2),
            storage or self.storage,
            SaveGroup(store=self.store, name=NAME, number=number, rank=rank, world_size=2),
            done=self.done.append,
            failed=self.failed.append,
            superseded=lambda: self.superseded,
        )

    def write(self, *ranks: int, **options: int) -> list[PartResult | None]:
        uploads = [self.upload(rank, **options) for rank in ranks]
        for each in uploads:
            each.start()
        return [each.written(TOLD_S) for each in uploads]

    def offered(self) -> list[str]:
        return [
            manifest.name for manifest in find_candidates(self.storage, "job-1", lambda _: None)
        ]


@pytest.fixture
def group(tmp_path) -> Group:
    return Group(tmp_path)


def test_a_checkpoint_is_complete_when_all_parts_are_there_and_not_before(group):
    first = group.upload(0)
    first.start()
    assert (first.written(0.1), group.offered()) == (None, [])
    group.write(1)
    assert first.written(TOLD_S).error is None
    assert group.offered() == [NAME]
    assert [file.name for file in group.done[0].files] == ["rank-0.pt", "rank-1.pt"]


def test_a_rank_that_says_nothing_is_not_awaited_for_ever(group, monkeypatch):
    monkeypatch.setattr(upload, "COLLECT_TIMEOUT_S", 0.1)
    (written,) = group.write(0)
    assert "other workers have not written their parts 0.1 s after rank 0" in written.error
    assert (group.failed, group.offered()) == ([written.error], [])


def test_a_rank_whose_group_is_over_awaits_nobody(group, tmp_path):
    first = group.upload(0)
    first.start()
    assert first.written(0.1) is None
    group.superseded = True
    assert "another worker group runs the job" in first.written(TOLD_S).error
    assert not (tmp_path / NAME).exists()


def test_a_group_that_was_over_once_stays_so(group, monkeypatch):
    """A look into a folder that is away for a moment says that nobody has taken over."""
    monkeypatch.setattr(upload, "POLLS_PER_GROUP_CHECK", 1)
    answers = iter([True])
    monkeypatch.setattr(
        Group,
        "superseded",
        property(lambda _: next(answers, False), lambda *_: None),
        raising=False,
    )
    (written,) = group.write(0)
    assert "another worker group runs the job" in written.error
    assert group.done == []


class Late(LocalStorage):
    """A storage where the next worker group takes over while the manifest is on its way."""

    group: Group

    def put(self, path: str, content: bytes) -> None:
        super().put(path, content)
        self.group.superseded = True


def test_a_manifest_that_came_too_late_removes_nothing_and_is_not_told(group, tmp_path):
    older = tmp_path / "g1-e0-s32"
    older.mkdir()
    storage = Late(tmp_path)
    storage.group = group
    first = group.upload(0, storage=storage)
    first.start()
    group.write(1)
    assert "came too late: another worker group runs the job" in first.written(TOLD_S).error
    assert (group.done, older.exists()) == ([], True)


class Full(LocalStorage):
    """A storage that takes nothing."""

    @contextmanager
    def writer(self, path: str) -> Iterator[BinaryIO]:
        raise OSError(28, "No space left on device")
        yield


def test_a_group_that_is_over_completes_and_removes_nothing(group, tmp_path):
    older = tmp_path / "g1-e0-s32"
    older.mkdir()
    group.superseded = True
    first, _ = group.write(0, 1)
    assert "another worker group runs the job" in first.error
    assert (group.offered(), older.exists()) == ([], True)


def test_a_second_try_at_the_same_place_hears_nothing_of_the_first(group, tmp_path):
    failing = group.upload(1, storage=Full(tmp_path))
    failing.start()
    assert "No space left" in failing.written(TOLD_S).error
    assert [written.error for written in group.write(0, 1, number=2)] == [None, None]
    values = read_part(group.storage, group.done[0], "rank-1.pt")["values"]
    assert values.tolist() == [2.0] * 3


class Unprunable(LocalStorage):
    """A storage that is gone when old checkpoints are looked for."""

    def names(self) -> list[str]:
        raise OSError("gone")


def test_old_checkpoints_that_cannot_be_removed_do_not_undo_a_new_one(group, tmp_path):
    first = group.upload(0, storage=Unprunable(tmp_path))
    first.start()
    group.write(1)
    assert (first.written(TOLD_S).error, group.failed) == (None, [])
    assert group.offered() == [NAME]


def test_messages_do_not_stay_in_the_store(group):
    before = group.store.num_keys()
    group.write(0, 1)
    assert group.store.num_keys() == before
