"""Where the workers of a group meet."""

from __future__ import annotations

import gc
import weakref
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import Store

from accordion_workers.worker.group_rendezvous import GroupStore
from accordion_workers.worker.process_group import process_group, release_groups


class Cycle:
    """Garbage that uses a group, and that only a collection frees."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.itself = group, self


def new_store() -> Store:
    """Store of a group whose only member so far is this process."""
    return GroupStore("127.0.0.1").wait_for_members(1, timedelta(seconds=30))


def join_group(world_size: int, **settings: Any) -> AbstractContextManager[None]:
    """Join a group of this size as its rank 0."""
    return process_group(
        new_store(), rank=0, world_size=world_size, device="cpu", host="127.0.0.1", **settings
    )


def test_a_process_whose_group_never_formed_meets_newcomers_as_if_new() -> None:
    """torch names a group by how many came before it, and counts those that never formed."""
    with pytest.raises(RuntimeError), join_group(2, timeout=timedelta(seconds=1)):
        pass
    with join_group(1):
        survivor = dist.group.WORLD.group_name
    with join_group(1):
        newcomer = dist.group.WORLD.group_name
    assert survivor == newcomer


def test_a_group_is_freed_after_the_garbage_that_used_it() -> None:
    """Freed by the garbage, it would wait for its threads while it keeps the interpreter's lock."""
    with join_group(1):
        world = weakref.ref(dist.group.WORLD)
        Cycle(dist.group.WORLD)
    gc.collect()
    assert world() is not None
    release_groups()
    assert world() is None
