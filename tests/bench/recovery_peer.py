"""The peer, plain Ray Train with its defaults: `python -m tests.bench.recovery_peer ADDRESS FOLDER
MIN MAX`.
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
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accordion_workers.data.digits import load_digits
from tests.bench.recovery_stage import ORDERED
from tests.bench.recovery_task import EVERY_STEPS, GLOBAL_BATCH, HIDDEN, LR, MOMENTUM, LoggedDigits


def main(address: str, folder: str, least: int, most: int) -> None:
    """Train until somebody ends this process."""
    ray.init(address=address, log_to_driver=False)
    # Ray Train wants a number, or a real tuple.
    workers = least if least == most else (least, most)
    print(f"{ORDERED}{time.time()}", flush=True)
    TorchTrainer(
        train,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            name="peer",
            storage_path=f"{folder}/storage",
            failure_config=FailureConfig(max_failures=-1),
        ),
    ).fit()


def train(config: dict[str, Any]) -> None:
    """Train as Ray's guides do: a checkpoint every few steps, and one more when a node is
    about to go.
    """
    torch.set_num_threads(1)
    task = LoggedDigits({"hidden": HIDDEN, "folder": config["folder"]})
    model = prepare_model(task.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    step = restore(model, optimizer)
    data = load_digits()[0]
    samples = TensorDataset(*data.batch(torch.arange(len(data))))
    share = max(1, GLOBAL_BATCH // ray.train.get_context().get_world_size())
    loader = prepare_data_loader(
        DataLoader(samples, batch_size=share, shuffle=True, drop_last=True)
    )
    warned = False
    while True:
        for inputs, targets in loader:
            optimizer.zero_grad()
            task.loss(model(inputs), targets, step=step).backward()
            optimizer.step()
            step += 1
            notice = ray.train.get_preemption_info() is not None
            if step % EVERY_STEPS == 0 or (notice and not warned):
                save(model, optimizer, step)
            warned = notice


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """All ranks report; rank 0 brings the state."""
    if ray.train.get_context().get_world_rank() != 0:
        ray.train.report({"step": step})
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = model.module if hasattr(model, "module") else model
        state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, Path(folder, "state.pt"))
        ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(folder))


def restore(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint; the step to begin with."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder, "state.pt"))
    (model.module if hasattr(model, "module") else model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
