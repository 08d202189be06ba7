"""Where the workers of a group meet."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from workers import group
from workers.group import open_store, process_group


def test_who_waited_in_vain_for_a_group_meets_newcomers_as_if_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch names a group by how many came before it, and counts those that never formed."""
    monkeypatch.setattr(group, "PEER_TIMEOUT", timedelta(seconds=1))
    alone = open_store("127.0.0.1")
    with pytest.raises(RuntimeError), process_group(alone, (0, 2), device="cpu", host="127.0.0.1"):
        pass
    with process_group(open_store("127.0.0.1"), (0, 1), device="cpu", host="127.0.0.1"):
        survivor = dist.group.WORLD.group_name
    with process_group(open_store("127.0.0.1"), (0, 1), device="cpu", host="127.0.0.1"):
        newcomer = dist.group.WORLD.group_name
    assert survivor == newcomer
