"""What a task is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from workers.data import Data


class Task(Protocol):
    """What is trained. A class of this kind is called with the spec's options: checked and complete
    if it is ours.

    One object serves all worker groups that its process is in: what a method gives must not depend
    on earlier calls.
    """

    def model(self) -> nn.Module:
        """A new model on the CPU; the default generator is seeded with the job's seed."""

    def train_data(self) -> Data:
        """The same samples in the same order on every worker."""

    def eval_data(self) -> Data:
        """Likewise."""

    def loss(self, outputs: Any, targets: Any, *, step: int) -> Tensor:
        """Mean over the samples, a scalar; `step` counts from 0 over the whole job."""

    def metrics(self, outputs: Any, targets: Any) -> Mapping[str, Tensor]:
        """Means over the samples, scalars by name, among them `loss`; the loop weights them by
        number of samples.

        Of those that an attribute `geometric` of the task names, such as perplexity, the geometric
        mean is kept.
        """


METHODS = ("model", "train_data", "eval_data", "loss", "metrics")
"""What a task has."""


__all__ = ["METHODS", "Task"]
