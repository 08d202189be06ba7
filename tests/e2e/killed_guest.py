"""A stock Ray Train script with `accordion_ray.attach`, of which a worker is killed: `python -m
tests.e2e.killed_guest FOLDER`.

It saves at the end of each epoch. Each rank writes its process id and its steps to FOLDER.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

import accordion_ray

NAME = "killed"
EPOCHS, STEPS_PER_EPOCH = 5, 40
STEP_S = 0.05


def main(folder: str) -> None:
    """Train with two workers, which Ray Train starts again."""
    ray.init(address="auto", log_to_driver=True)
    TorchTrainer(
        train,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name=NAME,
            storage_path=f"{folder}/ray",
            failure_config=FailureConfig(max_failures=3),
        ),
    ).fit()


def train(config: dict[str, Any]) -> None:
    """Train; a line for each step tells how many are done."""
    rank = ray.train.get_context().get_world_rank()
    folder = Path(config["folder"])
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    model = prepare_model(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = accordion_ray.attach(model, optimizer, name=NAME)
    told = (folder / f"steps-{rank}").open("a", buffering=1)
    told.write(f"begin {session.steps}\n")
    while session.steps < EPOCHS * STEPS_PER_EPOCH:
        inputs = torch.randn(4, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs.tanh()).backward()
        optimizer.step()
        told.write(f"done {session.steps}\n")
        time.sleep(STEP_S)
        if session.steps % STEPS_PER_EPOCH == 0:
            with tempfile.TemporaryDirectory() as saved:
                accordion_ray.save_state(session, saved)
                checkpoint = Checkpoint.from_directory(saved) if rank == 0 else None
                ray.train.report({"loss": 1.0}, checkpoint=checkpoint)


if __name__ == "__main__":
    main(sys.argv[1])
