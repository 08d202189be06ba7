"""Where the workers of a group meet."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import Store

from accordion_workers.worker.group_rendezvous import GroupStore
from accordion_workers.worker.process_group import process_group


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
