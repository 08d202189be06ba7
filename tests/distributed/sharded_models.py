"""Models that FSDP2 shards over a grid of workers, for tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

REPLICAS, SHARDS = 2, 2


@cache
def grid() -> Any:
    return init_device_mesh("cpu", (REPLICAS, SHARDS), mesh_dim_names=("replicate", "shard"))


class Model(nn.Module):
    """Two blocks; the first bias has fewer values than there are shards."""

    uses = 1
    """How often each block is used in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 33)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(33, 33), nn.Tanh()) for _ in range(2))
        self.last = nn.Linear(33, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(inputs))
        for block in self.uses * list(self.blocks):
            hidden = hidden + self.use(block, hidden)
        return self.last(hidden)

    def use(self, block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        return block(hidden)


class CheckpointedModel(Model):
    """Model whose backward pass runs another one for each block."""

    def use(self, block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, hidden, use_reentrant=True)


class CompiledModel(Model):
    """Model whose blocks are compiled, each with names of its own."""

    def __init__(self) -> None:
        super().__init__()
        # What Inductor generates would take most of a test.
        self.blocks = nn.ModuleList(
            torch.compile(block, backend="aot_eager") for block in self.blocks
        )


class FrozenEnds(Model):
    """Model of which only blocks train, each of them sharded for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)
        self.last.requires_grad_(False)


class SingleRow(nn.Module):
    """Model of which only one shard holds any value."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.last = nn.ModuleList(), nn.Linear(24, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(inputs)


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(8, 24, generator=draw)
    return inputs, inputs.sum(1, keepdim=True).sin()


def build(kind: Any = Model, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = kind()
    mesh = grid()
    for part in model.blocks if kind is FrozenEnds else (*model.blocks, model):
        fully_shard(part, mesh=mesh["shard"], **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, mesh["replicate"].get_group()


def backward(model: nn.Module, rank: int, step: int) -> float:
    inputs, targets = batch(rank, step)
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    return float(loss.detach())


def full(model: nn.Module) -> list[torch.Tensor]:
    return [one.full_tensor().detach().clone() for one in model.parameters()]


def backward_all(model: nn.Module, step: int) -> None:
    """Leave in an unsharded model the gradient of what all workers take in a step."""
    for rank in range(REPLICAS * SHARDS):
        inputs, targets = batch(rank, step)
        loss = nn.functional.mse_loss(model(inputs), targets)
        (loss / (REPLICAS * SHARDS)).backward()
