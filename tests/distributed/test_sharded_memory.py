"""Memory that a session of a sharded model takes, as the book says."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from accordion import Config, LocalSteps, attach
from tests.distributed.sharded_models import backward, build


class Wide(nn.Module):
    """Model whose exchanges take little beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(16))
        self.last = nn.Linear(512, 1, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.pad(inputs, (0, 488))
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.last(hidden)


def hold(rank: int, config: Config | None) -> float:
    """Return the bytes of tensors after two steps, in those of the worker's part of the model."""
    model, optimizer, replicas = build(Wide)
    before = _bytes_of_tensors()
    part = sum(one.to_local().nbytes for one in model.parameters())
    session = None
    if config is not None:
        session = attach(model, config, optimizer, replicate_group=replicas)
    for step in range(2):
        backward(model, rank, step)
        (optimizer if session is None else session).step()
        optimizer.zero_grad()
    return (_bytes_of_tensors() - before) / part


def _bytes_of_tensors() -> int:
    gc.collect()
    tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, nn.Parameter)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    return sum(one.nbytes() for one in storages.values())


LOCAL = {"low": {"bits": 4}, "high": {"bits": 4}, "local_steps": LocalSteps(low=2, high=2)}


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (Config(method="none"), 0.0),
        (Config(method="powersgd"), 1.0),
        (Config(method="topk"), 1.8),
        (Config(method="qsgd", **LOCAL), 2.5),
    ],
    ids=lambda value: value.method if isinstance(value, Config) else str(value),
)
def test_a_session_holds_as_much_as_the_book_says_of_a_workers_part(run_grid, config, parts):
    plain, ours = run_grid(hold, None), run_grid(hold, config)
    for theirs, own in zip(plain, ours, strict=True):
        assert parts <= own - theirs <= parts + 0.45
