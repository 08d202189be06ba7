"""Random regression of any size, for measurements and failure tests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from accordion.base.messages import OptionValue
from accordion_workers.data import Data
from accordion_workers.models.mlp import LinearStack

_EVAL_SAMPLES = 256
_DISTINCT = 4096
"""Number of distinct rows, so that a million wide samples need not fit in memory."""
_TRAIN_SEED, _EVAL_SEED = 1, 2


class Synthetic:
    """Options: `samples`, `width`, `depth`; `raise_at_step` and `nan_at_step` break a run at that
    step.
    """

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        self._samples = int(options["samples"])
        self._width = int(options["width"])
        self._depth = int(options["depth"])
        self._raise_at_step = int(options["raise_at_step"])
        self._nan_at_step = int(options["nan_at_step"])

    def model(self) -> nn.Module:
        """Return a stack of square linear layers."""
        return LinearStack(self._width, self._depth)

    def train_data(self) -> Data:
        """Return normal inputs, and targets that are a fixed nonlinear function of them."""
        return RepeatedRows.draw(self._samples, self._width, seed=_TRAIN_SEED)

    def eval_data(self) -> Data:
        """Return held-out rows, drawn with another seed."""
        return RepeatedRows.draw(_EVAL_SAMPLES, self._width, seed=_EVAL_SEED)

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:
        """Return the mean squared error; NaN from `nan_at_step` on.

        Raises:
            RuntimeError: in step `raise_at_step`.
        """
        if step == self._raise_at_step:
            raise RuntimeError(f"step {step} is the one in which raise_at_step asks for an error")
        loss = functional.mse_loss(outputs, targets)
        broken = 0 <= self._nan_at_step <= step
        return loss * math.nan if broken else loss

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return the mean squared error."""
        return {"loss": functional.mse_loss(outputs, targets)}


@dataclass(frozen=True, slots=True)
class RepeatedRows:
    """`samples` samples with at most `len(inputs)` distinct rows."""

    samples: int
    inputs: Tensor
    targets: Tensor

    @classmethod
    def draw(cls, samples: int, width: int, *, seed: int) -> RepeatedRows:
        """Draw rows of `width` values, equal for equal seeds."""
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(min(samples, _DISTINCT), width, generator=generator)
        targets = inputs.roll(1, dims=1).tanh()
        return cls(samples, inputs, targets)

    def __len__(self) -> int:
        return self.samples

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows at these indices."""
        rows = indices % len(self.inputs)
        return self.inputs[rows], self.targets[rows]
