"""What a task is, and how the loop gets one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol, cast

from torch import Tensor, nn

from accordion.messages import OptionValue
from workers.data import Data
from workers.spec import TaskSpec
from workers.tasks import TASKS


class Task(Protocol):
    """What is trained. A class of this kind is called with the options of the spec, checked and complete."""

    def model(self) -> nn.Module:
        """A new model on the CPU; the default generator is seeded with the job's seed."""

    def train_data(self) -> Data:
        """The same samples in the same order on every worker."""

    def eval_data(self) -> Data:
        """Likewise."""

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:
        """Mean over the samples, a scalar; `step` counts from 0 over the whole job."""

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Means over the samples, scalars by name, among them `loss`; the loop weights them by number of samples."""


def load_task(spec: TaskSpec) -> Task:
    """The task that the spec names, from the table."""
    module, _, name = TASKS[spec.name].task.partition(":")
    make = getattr(importlib.import_module(module), name)
    options: dict[str, OptionValue] = spec.options
    return cast("Task", make(options))


__all__ = ["Task", "load_task"]
