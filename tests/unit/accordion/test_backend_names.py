"""Which backend of a process group serves a device."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers "fake"

from accordion.compress.exchange import GroupNetwork
from accordion.compress.executors import backend_name, create_exchange_group


@pytest.mark.parametrize(
    ("name", "on_cuda"), [(None, "none"), ("gloo", "gloo"), ("cpu:gloo,cuda:fake", "fake")]
)
def test_the_backend_of_a_device_is_known_whatever_a_group_was_made_with(name, on_cuda):
    if name is None and torch.cuda.is_available():
        on_cuda = "nccl"
    dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
    try:
        for group in (dist.group.WORLD, create_exchange_group(dist.group.WORLD)):
            assert backend_name(group, torch.device("cpu")) == "gloo"
            assert backend_name(group, torch.device("cuda")) == on_cuda
    finally:
        dist.destroy_process_group()


def test_a_message_of_gloo_is_on_the_cpu_although_the_gradients_are_on_a_gpu(monkeypatch):
    sent: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "send", lambda tensor, **_: sent.append(tensor))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        GroupNetwork(dist.group.WORLD, torch.device("cuda")).send_to_rank_0(torch.ones(3))
    finally:
        dist.destroy_process_group()
    assert [tensor.device.type for tensor in sent] == ["cpu"]
