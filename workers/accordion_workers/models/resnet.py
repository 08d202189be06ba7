"""ResNet-18 (arXiv:1512.03385) for 32 x 32 images, with the small stem used for CIFAR."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

CHANNELS = 64
"""Channels of the stem and the first stage in the published model; every stage doubles them."""
PARAMETERS = 11_173_962
"""Parameters of ResNet-18 with ten classes and `CHANNELS`, as in published counts."""
_STRIDES = (1, 2, 2, 2)
"""First stride of each stage; every stage has two blocks."""


class ResNet18(nn.Sequential):
    """[N, 3, 32, 32] to [N, classes]: a 3 x 3 stem without pooling, four stages of two blocks, one
    linear layer.
    """

    def __init__(self, classes: int, channels: int = CHANNELS) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            stem=nn.Conv2d(3, channels, 3, padding=1, bias=False),
            norm=nn.BatchNorm2d(channels),
            relu=nn.ReLU(),
        )
        inputs = channels
        for number, stride in enumerate(_STRIDES):
            outputs = channels << number
            layers[f"stage{number + 1}"] = nn.Sequential(
                ResidualBlock(inputs, outputs, stride), ResidualBlock(outputs, outputs, 1)
            )
            inputs = outputs
        layers |= OrderedDict(
            pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), output=nn.Linear(inputs, classes)
        )
        super().__init__(layers)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with a residual connection.

    Where the residual connection leaves pixels out, pooling over single ones does it. A 1 x 1
    convolution with a stride would be the same, but for oneDNN, which with fewer than 16 channels
    in memory order NHWC writes beyond its memory (its issue 6035; torch 2.13 has it).
    """

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
            else nn.Sequential(
                nn.MaxPool2d(1, stride),
                nn.Conv2d(inputs, outputs, 1, bias=False),
                nn.BatchNorm2d(outputs),
            )
        )

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """Transform N images with C channels."""
        output: Tensor = (self.through(x_NCHW) + self.around(x_NCHW)).relu()
        return output
