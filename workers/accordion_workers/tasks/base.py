"""Interface of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from accordion_workers.data import Data


class Task(Protocol):
    """What is trained. The class is called with the spec's options, checked and complete for
    built-in tasks.

    One object serves all worker groups of its process, so results must not depend on earlier calls.
    """

    def model(self) -> nn.Module:
        """Return a new model on the CPU; the default generator is seeded with the job's seed."""

    def train_data(self) -> Data:
        """Return the training data: equal samples in equal order on every worker, at least one."""

    def eval_data(self) -> Data:
        """Return the held-out data: equal samples in equal order on every worker, at least one."""

    def loss(self, outputs: Any, targets: Any, *, step: int) -> Tensor:
        """Return the mean over the samples, a scalar; `step` counts from 0 over the whole job."""

    def metrics(self, outputs: Any, targets: Any) -> Mapping[str, Tensor]:
        """Return means over the samples as scalars by name, including `loss`; the loop weights them
        by number of samples.

        Metrics named in the task's attribute `geometric`, such as perplexity, get the geometric
        mean.
        """


METHODS = ("model", "train_data", "eval_data", "loss", "metrics")
"""Members that a task must have."""


__all__ = ["METHODS", "Task"]
