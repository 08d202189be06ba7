"""FSDP2 on one card: four replicas by gloo, since NCCL refuses two ranks on a card. Each has one
shard: gloo scatters nothing between cards.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from accordion import Config, LocalSteps, attach, distributed_state, load_distributed_state
from accordion.compressors import COMPRESSORS
from tests.distributed import small


@cache
def grid(kind: str) -> Any:
    shape = (dist.get_world_size(), 1)
    return init_device_mesh(kind, shape, mesh_dim_names=("replicate", "shard"))


def _train(rank: int, model: nn.Module, config: Config, card: torch.device, **options: Any) -> Any:
    """Take six steps; return the session."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session = attach(model, config, optimizer=optimizer, **options)
    for step in range(6):
        inputs, labels = small.batch(rank, step)
        cross_entropy(model(inputs.to(card)), labels.to(card)).backward()
        session.step()
        optimizer.zero_grad()
    session.finish_round()
    return session


def train_sharded(
    rank: int, config: Config, card: torch.device, folder: str = ""
) -> tuple[list[torch.Tensor], bool]:
    """Return the parameters, and whether a session has the residuals that another one saved."""
    torch.manual_seed(0)
    model = small.SmallNet()
    mesh = grid(card.type)
    fully_shard(model.to(card), mesh=mesh["shard"])
    replicas = mesh["replicate"].get_group()
    session = _train(rank, model, config, card, replicate_group=replicas)
    kept = True
    if folder:
        dcp.save({"accordion": distributed_state(session)}, checkpoint_id=folder)
        saved = session.state_dict()["engine"]["residuals"]
        session.source.remove()
        again = attach(model, config, replicate_group=replicas)
        load_distributed_state(again, folder)
        loaded = again.state_dict()["engine"]["residuals"]
        kept = all(torch.equal(loaded[name], value) for name, value in saved.items())
    held: list[Any] = list(model.parameters())
    return [one.to_local().detach().cpu() for one in held], kept


def train_whole(rank: int, config: Config, card: torch.device) -> list[torch.Tensor]:
    torch.manual_seed(0)
    places = {"device_ids": [card]} if card.type == "cuda" else {}
    ddp = DistributedDataParallel(small.SmallNet().to(card), **places)
    _train(rank, ddp, config, card)
    return [one.detach().cpu() for one in ddp.module.parameters()]


def test_without_compression_replicas_train_as_ddp(run_grid, card):
    config = Config(method="none")
    sharded, whole = (run_grid(one, config, card) for one in (train_sharded, train_whole))
    for (ours, _), theirs in zip(sharded, whole, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", sorted(COMPRESSORS))
def test_replicas_on_a_card_end_with_the_same_bits(run_grid, card, method):
    (first, _), *others = run_grid(train_sharded, Config(method=method), card)
    for second, _ in others:
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert all(torch.isfinite(value).all() for value in first)


def test_local_steps_end_with_the_same_bits(run_grid, card):
    config = Config(method="qsgd", local_steps=LocalSteps(low=3, high=3))
    (first, _), *others = run_grid(train_sharded, config, card)
    for second, _ in others:
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_residuals_are_saved_by_distributed_checkpoints(run_grid, card, tmp_path):
    found = run_grid(train_sharded, Config(method="signsgd"), card, str(tmp_path))
    assert all(kept for _, kept in found)
