"""A small convolutional network without skip connections on CIFAR-10 at half its resolution."""

from __future__ import annotations

from torch import nn

from accordion_workers.tasks.cifar import CifarResnet18

CHANNELS = (8, 16, 16, 32, 32, 64, 64)
POOLED_AFTER = frozenset({0, 2, 4})
"""Layers whose outputs are halved in height and width."""
CLASSES = 10


class SmallVgg(CifarResnet18):
    """Options: `data`, `augment`, `channels` (ignored), `samples`, `eval_samples`."""

    def model(self) -> nn.Module:
        """Return seven convolutions with batch norm, and a linear layer: 74,000 parameters."""
        layers: list[nn.Module] = [nn.AvgPool2d(2)]
        inputs = 3
        for index, outputs in enumerate(CHANNELS):
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
            if index in POOLED_AFTER:
                layers.append(nn.MaxPool2d(2))
            inputs = outputs
        return nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)
        )
