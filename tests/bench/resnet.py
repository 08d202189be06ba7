"""ResNet-18 for 32 x 32 pictures, as CIFAR results are reported with: a 3 x 3 stem, no pooling before the stages."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PARAMETERS = 11_173_962
"""Of the usual CIFAR variant with ten classes; published float counts rest on it."""
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels and first stride; every stage has two blocks."""


class Block(nn.Module):
    """Two 3 x 3 convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.through = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = (
            nn.Identity()
            if inputs == outputs and stride == 1
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return torch.relu(self.through(x_BCHW) + self.around(x_BCHW))


def resnet18(seed: int = 0, classes: int = 10) -> nn.Module:
    """The model, with weights drawn from `seed`."""
    torch.manual_seed(seed)
    blocks: list[nn.Module] = []
    inputs = STAGES[0][0]
    for outputs, stride in STAGES:
        blocks += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    stem = (nn.Conv2d(3, STAGES[0][0], 3, padding=1, bias=False), nn.BatchNorm2d(STAGES[0][0]), nn.ReLU())
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
    found = sum(parameter.numel() for parameter in model.parameters())
    assert classes != 10 or found == PARAMETERS, f"the model has {found} parameters, not {PARAMETERS}"
    return model
