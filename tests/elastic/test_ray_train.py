"""Scripts in stock Ray Train: one with `session`, and a guest on a node that leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from accordion_workers.training.sampler import batch_at, epoch_order
from tests.elastic.conftest import wait_for
from tests.elastic.in_ray_train import EPOCHS
from tests.elastic.leaving_guest import STEPS
from tests.elastic.node_jobs import host_of_a_worker
from tests.elastic.nodes import Cluster
from tests.programs import run_program

AFTER = 30
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


def lines_of(folder: Path, kind: str) -> list[list[list[str]]]:
    """Words of the lines of a kind, for each rank."""
    files = [folder / f"rank-{rank}" for rank in range(2)]
    texts = [file.read_text() if file.exists() else "" for file in files]
    return [
        [line.split()[1:] for line in text.splitlines() if line.startswith(kind)] for text in texts
    ]


def test_a_guest_saves_when_a_node_is_about_to_leave(tmp_path: Path) -> None:
    with Cluster(nodes=3, cpus=1) as made:
        command = [sys.executable, "-m", "tests.elastic.leaving_guest", made.address, str(tmp_path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
            wait_for(lambda: all(len(steps) > AFTER for steps in lines_of(tmp_path, "step")))
            made.drain(host_of_a_worker(made, "ray::RayTrainWorker"), deadline_s=5)
            _, errors = run.communicate(timeout=500)
    assert run.returncode == 0, errors[-4000:]
    [[save], [other]] = lines_of(tmp_path, "save")
    assert save == other
    # Both begin again where they were saved; compression too, which counts its steps.
    assert lines_of(tmp_path, "begin") == [[["0", "0"], [*save, *save]]] * 2
    done = lines_of(tmp_path, "step")[0]
    assert sorted({int(step) for [step] in done}) == list(range(STEPS))
