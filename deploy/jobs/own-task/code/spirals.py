"""A task of your own: tell the arms of a spiral apart. Any class with these five methods
will do.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from accordion_workers import TensorData


class Spirals:
    """Options: `arms` of the spiral, and units of the `hidden` layers."""

    def __init__(self, options: dict) -> None:
        self._arms, self._hidden = options.get("arms", 3), options.get("hidden", 64)

    def model(self) -> nn.Module:
        hidden = self._hidden
        return nn.Sequential(
            nn.Linear(2, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, self._arms),
        )

    def train_data(self) -> TensorData:
        return self._points(600, seed=0)

    def eval_data(self) -> TensorData:
        return self._points(300, seed=1)

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:
        return cross_entropy(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        right = outputs.argmax(dim=1) == targets
        return {"loss": cross_entropy(outputs, targets), "accuracy": right.float().mean()}

    def _points(self, number: int, seed: int) -> TensorData:
        chance = torch.Generator().manual_seed(seed)
        arm = torch.arange(number) % self._arms
        radius = torch.rand(number, generator=chance)
        angle = (
            4 * radius
            + 2 * math.pi * arm / self._arms
            + 0.1 * torch.randn(number, generator=chance)
        )
        return TensorData(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm)
