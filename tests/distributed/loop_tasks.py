"""Tasks that show what the number of workers changes and what it does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accordion_workers.data import TensorData
from accordion_workers.tasks import TASKS, TaskRow
from accordion_workers.tasks.digits import DigitsMlp
from accordion_workers.training.clock import Clock
from tests.distributed.loop_jobs import RecordingLink, Result, run_job, spec


class Shaky(DigitsMlp):
    """Digits in float64 with dropout and noisy inputs: everything that a seed has to hold still."""

    def model(self) -> nn.Module:
        torch.set_default_dtype(torch.float64)
        try:
            return nn.Sequential(super().model(), nn.Dropout(0.2))
        finally:
            torch.set_default_dtype(torch.float32)

    def train_data(self) -> Any:
        return Noisy(super().train_data())

    def eval_data(self) -> Any:
        return Noisy(super().eval_data())


class Noisy:
    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = self.data.batch(indices)
        return inputs.double() + 0.01 * torch.randn(inputs.shape, dtype=torch.float64), targets


class NoTraining(DigitsMlp):
    """Digits without training data, as from a glob that matches nothing."""

    def train_data(self) -> Any:
        return TensorData(torch.empty(0, 64), torch.empty(0, dtype=torch.int64))


class NoEvaluation(DigitsMlp):
    """Digits without held-out data."""

    def eval_data(self) -> Any:
        return NoTraining.train_data(self)


class Unequal(DigitsMlp):
    """Digits of which rank 1 lacks one."""

    def train_data(self) -> Any:
        data, lacking = super().train_data(), dist.get_rank()
        return TensorData(data.inputs[lacking:], data.targets[lacking:])


class Normed(DigitsMlp):
    """Digits as pictures, in fp32, through convolutions with BatchNorm."""

    def model(self) -> nn.Module:
        stages = [layer for planes in ((1, 8), (8, 16)) for layer in stage(*planes)]
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), *stages, nn.Flatten(), nn.Linear(16 * 64, 10)
        )


class Normed64(Normed):
    """The task in float64, where rounding cannot grow."""

    def model(self) -> nn.Module:
        return super().model().double()

    def train_data(self) -> Any:
        return Noisy(super().train_data())

    def eval_data(self) -> Any:
        return Noisy(super().eval_data())


class Tied(DigitsMlp):
    """Digits through blocks of which two share a weight."""

    def model(self) -> nn.Module:
        blocks = [nn.Linear(64, 64) for _ in range(3)]
        blocks[2].weight = blocks[0].weight
        return nn.Sequential(*blocks, nn.Linear(64, 10))


class ListedTwice(DigitsMlp):
    """Digits through blocks of which another list has a part again."""

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Sequential(nn.Linear(64, 32), nn.Tanh()), nn.Linear(32, 10))
        model[1].others = nn.ModuleList([model[0], model[0][0]])
        return model


def stage(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]


def run_task(
    rank: int,
    storage: Path,
    task: str,
    parts: Mapping[str, Any],
    link: RecordingLink | None = None,
    generation: int = 1,
    clock: Clock | None = None,
) -> Result:
    """Train one of these, without compression."""
    rows = dict(TASKS)
    TASKS[task] = TaskRow(
        summary="", task=f"{__name__}:{task}", options=TASKS["digits-mlp"].options
    )  # type: ignore[index]
    try:
        job = spec(task, {"hidden": 16}, compression={"method": "none"}, **parts)
        return run_job(rank, storage, job, link, generation, clock)
    finally:
        TASKS.clear()  # type: ignore[attr-defined]
        TASKS.update(rows)  # type: ignore[attr-defined]
