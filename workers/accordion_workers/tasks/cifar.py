"""ResNet-18 on CIFAR-10, or on any labelled pictures of 32 x 32 pixels."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

from accordion.base.messages import OptionValue
from accordion_workers.data import Data
from accordion_workers.data.cifar import load_images
from accordion_workers.data.files import expand_path
from accordion_workers.data.images import ImageData, Normalization
from accordion_workers.models.resnet import ResNet18


class CifarResnet18:
    """Options: `data`, `augment`, `channels`, `samples`, `eval_samples`."""

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        self._channels = int(options["channels"])
        self._augment = bool(options["augment"])
        self._images = load_images(
            expand_path(str(options["data"])),
            samples=int(options["samples"]),
            eval_samples=int(options["eval_samples"]),
        )
        self._normalization = Normalization.of(self._images.train)

    def model(self) -> nn.Module:
        """Return a ResNet-18 with an output for each class of the data."""
        return ResNet18(self._images.classes, self._channels)

    def train_data(self) -> Data:
        """Return the training images, randomly cropped and flipped if `augment` is set."""
        return ImageData(
            images=self._images.train, normalization=self._normalization, augment=self._augment
        )

    def eval_data(self) -> Data:
        """Return the held-out images, normalised by the training images' statistics."""
        return ImageData(images=self._images.held_out, normalization=self._normalization)

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:  # noqa: ARG002
        """Cross entropy."""
        return functional.cross_entropy(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return cross entropy and accuracy."""
        right = outputs.argmax(dim=1) == targets
        return {
            "loss": functional.cross_entropy(outputs, targets),
            "accuracy": right.float().mean(),
        }
