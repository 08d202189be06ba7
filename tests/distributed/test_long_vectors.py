"""Parameters of one dimension: small ones travel dense, tables of a million values do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from accordion.base.errors import HookError
from accordion.config import Config
from accordion.hook.layers import LONG_VECTOR
from accordion.session.session import attach


class Table(torch.nn.Module):
    """A weight of its own for each of many features, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(LONG_VECTOR))
        self.bias = torch.nn.Parameter(torch.zeros(64))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.table[features].sum(1) + self.bias.sum()


def _train(rank: int, method: str) -> tuple[dict[str, Any], list[torch.Tensor]]:
    ddp = DistributedDataParallel(Table())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    session = attach(ddp, Config(method=method), optimizer=optimizer)
    for step in range(2):
        features = torch.randint(
            LONG_VECTOR, (64, 8), generator=torch.Generator().manual_seed(2 * step + rank)
        )
        (ddp(features) - 1).square().mean().backward()
        session.step()
        optimizer.zero_grad()
    sent = {
        name: count.payload / count.dense
        for name, count in session.ledger.by_layer.items()
        if count.dense
    }
    return sent, [parameter.detach().clone() for parameter in ddp.module.parameters()]


@pytest.mark.parametrize(("method", "most"), [("topk", 0.25), ("qsgd", 0.3), ("powersgd", 1.0)])
def test_a_long_vector_is_compressed_entry_by_entry_and_by_powersgd_dense(run_group, method, most):
    (sent, values), (_, other) = run_group(2, _train, method)
    assert sent["bias"] == 1.0
    assert sent["table"] <= most
    assert (sent["table"] == 1.0) == (most == 1.0)
    assert all(torch.equal(a, b) for a, b in zip(values, other, strict=True))


def test_a_parameter_with_the_conjugate_bit_is_refused_with_the_way_out():
    model = torch.nn.Module()
    model.turned = torch.nn.Parameter(torch.randn(4, 4, dtype=torch.complex64).conj())
    with pytest.raises(HookError, match=r"'turned'.*resolve_conj\(\)"):
        attach(model, Config())
