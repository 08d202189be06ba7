"""What a task is, and how the loop gets one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from torch import Tensor, nn

from accordion.messages import OptionValue
from workers.data import Data
from workers.errors import CodeError
from workers.spec import TaskSpec
from workers.tasks import TASKS
from workers.user_code.install import own_class


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


def load_task(spec: TaskSpec) -> Task:
    """The task that the spec names: from the table, or a class of the user's own, which must be
    importable by now.

    A class is called with the options of the spec.

    Raises:
        CodeError: there is no such module or class, or the class lacks a method.
    """
    place = spec.name if spec.is_own else TASKS[spec.name].task
    make = own_class(place)
    missing = [name for name in METHODS if not callable(getattr(make, name, None))]
    if missing:
        raise CodeError(
            f"class {place} has no {', '.join(missing)}; a task has {', '.join(METHODS)}"
        )
    options: dict[str, OptionValue] = spec.options
    return cast("Task", make(options))


__all__ = ["METHODS", "Task", "load_task"]
