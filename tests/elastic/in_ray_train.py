"""A stock Ray Train run that dies once: `python -m tests.elastic.in_ray_train ADDRESS FOLDER`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

from accordion_workers import session

EPOCHS = 4


def main(address: str, folder: str) -> None:
    """Train with one worker, which Ray Train starts again after its death."""
    ray.init(address=address, log_to_driver=False)
    TorchTrainer(
        train,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            name="stock", storage_path=f"{folder}/ray", failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()


def train(config: dict[str, Any]) -> None:
    """Train an unwrapped model, as `prepare_model` returns it, and die after three epochs for the
    first time.
    """
    folder = Path(config["folder"])
    session.init_process_group(storage=folder / "session", job={"training": {"global_batch": 16}})
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    batches = session.batches(len(inputs))
    torch.manual_seed(0)
    model = prepare_model(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.attach(model, optimizer)
    for epoch in session.epochs(EPOCHS):
        if epoch == EPOCHS - 1 and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        for rows in batches:
            optimizer.zero_grad()
            session.backward(nn.functional.mse_loss(model(inputs[rows]), inputs[rows].tanh()))
            session.step()
        with (folder / "trained").open("a") as file:
            file.write(
                f"{epoch} {type(model).__name__} {float(model.weight.detach().double().sum())}\n"
            )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
