"""Perceptrons."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn


class Mlp(nn.Sequential):
    """One hidden layer: [N, inputs] to [N, outputs]."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__(
            OrderedDict(
                hidden=nn.Linear(inputs, hidden), relu=nn.ReLU(), output=nn.Linear(hidden, outputs)
            )
        )


class LinearStack(nn.Module):
    """`depth` linear layers of equal width, with a ReLU between two: [N, width] to [N, width]."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x_NC: Tensor) -> Tensor:
        """Transform N samples of C = width values."""
        *hidden, last = self.layers
        for layer in hidden:
            x_NC = layer(x_NC).relu()
        output: Tensor = last(x_NC)
        return output
