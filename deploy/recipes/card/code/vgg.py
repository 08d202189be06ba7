"""VGG-19 with batch norm (arXiv:1409.1556) for images of 32 x 32 pixels."""

from __future__ import annotations

from torch import nn

from accordion_workers.tasks.cifar import CifarResnet18

STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels and convolutions of each stage; a pooling halves height and width after it."""
CLASSES = 10


class Vgg19(CifarResnet18):
    """Options: `data`, `augment`, `channels` (ignored), `samples`, `eval_samples`."""

    def model(self) -> nn.Module:
        """Return sixteen convolutions and three linear layers: 20,565,834 parameters."""
        return build_vgg19(CLASSES)


def build_vgg19(classes: int) -> nn.Module:
    """Return [N, 3, 32, 32] to [N, classes]."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, convolutions in STAGES:
        for _ in range(convolutions):
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    for _ in range(2):
        layers += [nn.Dropout(), nn.Linear(inputs, inputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(inputs, classes))
