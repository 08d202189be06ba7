"""Interface of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from accordion.base.messages import OptionValue
from accordion_workers.data import Data


class Task(Protocol):
    """What is trained, as `task: {name: "module:Class", options: {...}}` names it.

    Each worker process makes one object and keeps it, with its data, through every resize and
    restart of the group, so results must not depend on earlier calls. Before each call, the default
    generators are seeded from the job's seed. A method that raises at every try ends the job as
    `TASK_RAISED`.

    An attribute `geometric`, such as `("perplexity",)`, names the metrics whose mean over parts of
    the data is the geometric one. It is optional.
    """

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        """Get the options of the job file: checked and complete for built-in tasks, as they stand
        there for a class of your own.

        Data that `data` of the job file names `train` are at the path in the environment variable
        `ACCORDION_DATA_TRAIN`.
        """

    def model(self) -> nn.Module:
        """Return a new model on the CPU, called whenever a worker group starts.

        The loop moves it to the worker's device and wraps it in DDP. Initial weights may be drawn
        from the default generator: they are equal on all workers.
        """

    def train_data(self) -> Data:
        """Return the training data, called once per process.

        They have at least one sample, and every worker has equal samples in equal order; the loop
        shuffles them and gives each worker its part. Return `TensorData`, or any object with the
        methods of `Data`; None is not allowed.
        """

    def eval_data(self) -> Data:
        """Return the held-out data, called once per process, with the same rules as for
        `train_data`. They are not shuffled.
        """

    def loss(self, outputs: Any, targets: Any, *, step: int) -> Tensor:
        """Return the mean loss over the samples of a micro-batch, a scalar with a gradient.

        The loop calls it on every worker after each forward pass in training, and weights it by the
        number of samples, so a step follows the mean over the global batch. A micro-batch has
        `training.micro_batch` samples; the last one of a batch may have fewer.

        Args:
            outputs: what the model returned, on the worker's device; cast to fp32 if
                `training.precision` is lower.
            targets: those of the batch, on the worker's device.
            step: steps of the optimizer since the start of the job, from 0.
        """

    def metrics(self, outputs: Any, targets: Any) -> Mapping[str, Tensor]:
        """Return the means over the samples of a micro-batch as scalars by name, `loss` among them.

        The loop calls it every `training.evaluate_every_epochs`, with the model in evaluation mode
        and without gradients. Each worker measures its part of the held-out data; the result is the
        mean over all samples of all workers, each micro-batch weighted by its number of samples. A
        result that is not finite is left out.
        """


METHODS = ("model", "train_data", "eval_data", "loss", "metrics")
"""Members that a task must have."""


__all__ = ["METHODS", "Task"]
