"""Task of the demo: handwritten digits, a perceptron with one hidden layer."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

from accordion.base.messages import OptionValue
from accordion_workers.data import Data
from accordion_workers.data.digits import load_digits
from accordion_workers.models.mlp import Mlp

_PIXELS = 64
_CLASSES = 10


class DigitsMlp:
    """Option `hidden`: units of the hidden layer."""

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        self._hidden = int(options["hidden"])
        self._train, self._eval = load_digits()

    def model(self) -> nn.Module:
        """Return a model with the layers `hidden` and `output`."""
        return Mlp(_PIXELS, self._hidden, _CLASSES)

    def train_data(self) -> Data:
        """1,437 images."""
        return self._train

    def eval_data(self) -> Data:
        """360 images."""
        return self._eval

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
