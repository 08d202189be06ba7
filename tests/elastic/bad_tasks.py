"""Tasks with faults of their own, each the same every time: none of them may spin."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from workers.data import Data
from workers.tasks.digits import DigitsMlp

STEP = 3
"""Where those fail that begin to train."""


class BadDigits(DigitsMlp):
    """Option `way`: how it fails, on rank 0 or while it is loaded."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__({"hidden": 8, "min_step_s": 0.0})
        self._way = str(options["way"])

    def train_data(self) -> Data:
        """The digits, unless loading fails."""
        if self._way == "exit while loading":
            os._exit(3)
        return _Uneven(super().train_data()) if self._way == "uneven" else super().train_data()

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:
        """Called for each micro-batch."""
        if step == STEP and dist.get_rank() == 0:
            self._fail()
        return super().loss(outputs, targets, step=step)

    def _fail(self) -> None:
        match self._way:
            case "crash":
                ctypes.string_at(0)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "interrupt":
                raise KeyboardInterrupt


class _Uneven:
    """Rank 1 has a batch less than the others."""

    def __init__(self, data: Data) -> None:
        self._data = data

    def __len__(self) -> int:
        return 256 - 64 * dist.get_rank() if dist.is_initialized() else 256

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The same."""
        return self._data.batch(indices)
