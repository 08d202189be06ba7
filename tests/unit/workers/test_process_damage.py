"""What user code broke in its own process explains errors of training only, not its own errors."""

from __future__ import annotations

import errno
import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from accordion_workers.worker import process_damage
from accordion_workers.worker.process_damage import explain_damage, note_destroyed_groups
from accordion_workers.worker.process_group import release_groups


@pytest.fixture
def make_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Destroyed groups are noted, and there is one."""
    for name in ("init_process_group", "destroy_process_group"):
        monkeypatch.setattr(dist, name, getattr(dist, name))
    monkeypatch.setattr(process_damage, "_destroyed_at", [])
    note_destroyed_groups()
    make(tmp_path / "first")
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def make(store: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)


@pytest.mark.usefixtures("make_group")
def test_use_of_a_group_that_was_destroyed_names_the_line() -> None:
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="process group") as caught:
        dist.all_reduce(torch.ones(1))
    told = explain_damage(caught.value)
    assert told is not None
    assert "test_process_damage.py:" in told
    assert "remove that call; the job destroys the group itself" in told


@pytest.mark.usefixtures("make_group")
def test_error_of_user_code_after_it_destroyed_the_group_is_its_own() -> None:
    dist.destroy_process_group()
    with pytest.raises(KeyError) as caught:
        {}["accuracy"]
    assert explain_damage(caught.value) is None


@pytest.mark.usefixtures("make_group")
def test_destroyed_group_is_forgotten_when_another_is_made(tmp_path: Path) -> None:
    dist.destroy_process_group()
    make(tmp_path / "second")
    assert process_damage._destroyed_at == []


def test_descriptor_that_user_code_has_closed_twice_is_its_own_error() -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as caught:
        os.fstat(descriptor)
    assert explain_damage(caught.value) is None


@pytest.mark.usefixtures("make_group")
def test_a_group_that_user_code_destroys_is_freed_after_the_garbage_that_used_it() -> None:
    """Freed by a model, it would wait for its threads while it keeps the interpreter's lock."""
    world = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    gc.collect()
    assert world() is not None
    release_groups()
    assert world() is None
