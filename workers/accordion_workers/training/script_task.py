"""What stands in for the task of a job whose task is a script, its state, and how it is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed import ProcessGroup

from accordion.session.optimizer_steps import Optimizers
from accordion_workers.training.clock import Clock
from accordion_workers.training.context import WorkerContext
from accordion_workers.training.kept_objects import OptimizerWithExtras, Stateful
from accordion_workers.training.train_state import TrainState, assemble_train_state

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptParts:
    """What a script trains, as it was given to `session.attach`."""

    module: nn.Module
    optimizer: Optimizers
    scaler: GradScaler | None
    kept: Mapping[str, Stateful]
    replicate_group: ProcessGroup | None
    """Workers with the same part of a sharded module; None if it is not."""
    samples: int
    """Number of training samples."""

    def build_state(self, context: WorkerContext) -> TrainState:
        """Build the state before the first step.

        Raises:
            HookError: `accordion.attach` refused the module.
            CodeError: a state cannot be saved and loaded back.
        """
        state = assemble_train_state(
            context,
            Clock(),
            (ScriptTask(), SampleCount(self.samples), SampleCount(0)),
            ddp=self.module,
            optimizer=self.optimizer,
            scaler=self.scaler,
            replicate_group=self.replicate_group,
        )
        state.optimizer = OptimizerWithExtras.of(self.optimizer, self.kept)
        return state
