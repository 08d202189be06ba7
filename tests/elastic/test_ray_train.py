"""A script with `session` in stock Ray Train."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from accordion_workers.training.sampler import batch_at, epoch_order
from tests.elastic.in_ray_train import EPOCHS
from tests.programs import run_program

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]


def _undisturbed() -> float:
    """Return the sum of the parameters that a plain loop reaches."""
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        order = epoch_order(64, seed=0, epoch=epoch)
        for place in range(0, 64, 16):
            batch = batch_at(place, num_samples=64, global_batch=16)
            rows = order[batch.start : batch.stop]
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs[rows]), inputs[rows].tanh()).backward()
            optimizer.step()
    return float(model.weight.detach().double().sum())


def test_one_worker_of_stock_ray_train_dies_and_goes_on_where_it_was(
    ray_cluster: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.elastic.in_ray_train", ray_cluster, str(tmp_path)]
    run = run_program(command, timeout=500)
    assert run.returncode == 0, run.stderr[-4000:]
    lines = [line.split() for line in (tmp_path / "trained").read_text().splitlines()]
    epochs = [int(epoch) for epoch, _, _ in lines]
    # the death may meet the checkpoint of the epoch before, which is then trained again; nothing
    # older is
    assert epochs in ([0, 1, 2, 3], [0, 1, 2, 2, 3])
    assert {kind for _, kind, _ in lines} == {"Linear"}
    assert float(lines[-1][2]) == pytest.approx(_undisturbed(), rel=1e-6)
