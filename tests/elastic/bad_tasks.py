"""Tasks with faults of their own, each the same every time: none of them may spin."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from accordion_workers.data import Data
from accordion_workers.tasks.digits import DigitsMlp

STEP = 3
"""Where those fail that begin to train."""
BATCH = 64
"""The default of `training.global_batch`."""


class BadDigits(DigitsMlp):
    """Option `way`: how it fails, on rank 0 or while it is loaded."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__({"hidden": 8, "min_step_s": 0.0})
        self._way = str(options["way"])

    def train_data(self) -> Data:
        """The digits, unless loading fails."""
        if self._way == "exit while loading":
            os._exit(3)
        data = super().train_data()
        return UnequalData(data) if self._way == "unequal data" else data

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:
        """Called for each micro-batch."""
        if step == STEP and dist.get_rank() == 0:
            self._fail()
        return super().loss(outputs, targets, step=step)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Called for each piece of the evaluation."""
        if self._way == "hang":
            time.sleep(3600)
        return super().metrics(outputs, targets)

    def _fail(self) -> None:
        match self._way:
            case "crash":
                ctypes.string_at(0)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "interrupt":
                raise KeyboardInterrupt


class UnequalData:
    """Samples of which rank 1 has one batch less, as where a node holds fewer files."""

    def __init__(self, data: Data) -> None:
        self._data = data

    def __len__(self) -> int:
        rank = dist.get_rank() if dist.is_initialized() else 0
        return 4 * BATCH - (BATCH if rank == 1 else 0)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The rows."""
        return self._data.batch(indices)
