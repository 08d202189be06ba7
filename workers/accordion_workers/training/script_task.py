"""What stands in for the task of a job whose task is a script, and how the script is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from torch import Tensor, nn

if TYPE_CHECKING:
    from accordion_workers.training.boundaries import Outcome


class ScriptExit(SystemExit):
    """Ends the script; `outcome` is the reason, and whether everything is saved."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(0)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class SampleCount:
    """Data of which only the number of samples is known: the script reads them."""

    number: int

    def __len__(self) -> int:
        return self.number

    def batch(self, indices: Tensor) -> NoReturn:
        """Raise: only the script can read its samples."""
        raise NotImplementedError(f"{len(indices)} samples are the script's own")


class ScriptTask:
    """Stands in for the task of a script, which has its own model, loss and data."""

    def model(self) -> nn.Module:
        """Not available: the script has the model."""
        raise NotImplementedError

    def train_data(self) -> SampleCount:
        """Not available: the script has the data."""
        raise NotImplementedError

    def eval_data(self) -> SampleCount:
        """Not available: the script has the data."""
        raise NotImplementedError

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:
        """Not available: the script has the loss."""
        raise NotImplementedError

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Not available: the script has the metrics."""
        raise NotImplementedError
