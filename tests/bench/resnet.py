"""The model that the bench trains: ResNet-18 for 32 x 32 pictures, its weights drawn from a
seed.
"""

from __future__ import annotations

import torch
from torch import nn

from accordion_workers.models.resnet import PARAMETERS, ResNet18

__all__ = ["PARAMETERS", "resnet18"]


def resnet18(seed: int = 0, classes: int = 10) -> nn.Module:
    """The model, with weights drawn from `seed`."""
    torch.manual_seed(seed)
    return ResNet18(classes)
