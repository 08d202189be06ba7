"""A task that uses Ray Train's functions inside of a job and writes down what they say."""

from __future__ import annotations

import json
import os

import ray.train
import torch.distributed as dist
from torch import Tensor

from tests.elastic.watched import WatchedDigits


class ReportingDigits(WatchedDigits):
    """Compares `ray.train.get_context()` with the process group in each step, and reports a
    metric.
    """

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:
        """Called for each micro-batch."""
        context = ray.train.get_context()
        told = (
            context.get_world_rank(),
            context.get_world_size(),
            context.get_local_rank(),
            context.get_node_rank(),
        )
        line = {"told": told, "group": (dist.get_rank(), dist.get_world_size(), dist.get_rank(), 0)}
        with (self._folder / f"context-{os.getpid()}").open("a") as file:
            file.write(json.dumps(line) + "\n")
        ray.train.report({"reported_step": step, "reported_rank": dist.get_rank()})
        return super().loss(outputs, targets, step=step)
