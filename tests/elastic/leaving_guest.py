"""A Ray Train script that saves when a node is about to leave: `python -m
tests.elastic.leaving_guest ADDRESS FOLDER`.

Writes a line for each step, save and start of each rank to FOLDER.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

import accordion_ray

STEPS = 200
STEP_S = 0.05


def main(address: str, folder: str) -> None:
    """Train with two workers."""
    quick = {f"RAY_TRAIN_{name}_INTERVAL_S": "0.5" for name in ("PREEMPTION_POLL", "HEALTH_CHECK")}
    ray.init(address=address, log_to_driver=False, runtime_env={"env_vars": quick})
    TorchTrainer(
        train,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name="leaving", storage_path=f"{folder}/ray"),
    ).fit()


def train(config: dict[str, Any]) -> None:
    """Train without any checkpoint but the one that a leaving node asks for."""
    rank = ray.train.get_context().get_world_rank()
    told = (Path(config["folder"]) / f"rank-{rank}").open("a", buffering=1)
    torch.manual_seed(0)
    model = prepare_model(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = accordion_ray.attach(model, optimizer, register=False)
    checkpoint, first = ray.train.get_checkpoint(), 0
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        model.load_state_dict(state["model"])
        first = state["step"]
    told.write(f"begin {first} {session.steps}\n")
    for step in range(first, STEPS):
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs.tanh()).backward()
        optimizer.step()
        told.write(f"step {step}\n")
        time.sleep(STEP_S)
        if accordion_ray.save_is_due(session):
            told.write(f"save {step + 1}\n")
            with tempfile.TemporaryDirectory() as folder:
                accordion_ray.save_state(session, folder)
                saved = None
                if rank == 0:
                    state = {"model": model.state_dict(), "step": step + 1}
                    torch.save(state, Path(folder) / "state.pt")
                    saved = Checkpoint.from_directory(folder)
                ray.train.report({}, checkpoint=saved)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
