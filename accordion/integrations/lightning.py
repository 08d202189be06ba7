"""PyTorch Lightning: a callback for `Trainer`.

    trainer = Trainer(strategy="ddp", callbacks=[AccordionCallback(config)])
    trainer.fit(model, data)

Both packages work, `lightning` and `pytorch_lightning`; the callback belongs to the one that the
script imported first.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from accordion.base.errors import HookError, MissingFrameworkError
from accordion.config import Config
from accordion.hook.attach_refusal import check_not_refused
from accordion.integrations.common import EpochReports, training_metrics
from accordion.session.session import Session, attach
from accordion.session.training_warnings import TrainingWarning

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def import_lightning() -> Any:
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            reason = error
    raise MissingFrameworkError(
        f"accordion.integrations.lightning needs Lightning ({reason}): pip install"
        " pytorch-lightning"
    ) from reason


_Callback: Any = import_lightning().Callback


class AccordionCallback(_Callback):
    """Compresses a trainer's gradients, logs bytes and decisions, and saves its state in every
    checkpoint.

    `fit(ckpt_path=...)` restores the state, also with another number of processes, or warns if the
    checkpoint has none. Another `fit` of the same trainer continues with the state of the one
    before; a new trainer starts from the beginning. `options` are those of `accordion.attach`.

    A round of local steps ends before a validation, before a checkpoint, and with an epoch. Only
    `trainer.save_checkpoint(..., weights_only=True)` does not end it: call
    `callback.session.finish_round()` on all workers before.

    `on_train_start` raises HookError if the strategy is neither DDP nor a single device, if there
    is not exactly one optimizer, or if a `ModelCheckpoint` would save weights only within a round.
    `on_before_optimizer_step` raises it under DDP if no gradients were exchanged, as after a
    `training_step` that returned None; on a single device such a step is left out.
    """

    def __init__(self, config: Config, **options: Any) -> None:
        self._config = config
        self._options = options
        self._saved: Mapping[str, Any] | None = None
        self._is_interrupted = False
        """Whether an exception ends training on this worker, and perhaps on no other."""
        self.session: Session | None = None
        """The session of the run; None before `fit`."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Attach to the model that the strategy has wrapped by now."""
        check_not_refused()
        check_trainer(trainer)
        if self._config.local_steps is not None and trainer.world_size > 1:
            check_checkpoints(trainer.checkpoint_callbacks)
        [optimizer] = trainer.optimizers
        self._keep_state(trainer)
        # Lightning runs the backward pass inside `optimizer.step`, so the session cannot follow
        # that call.
        session = attach(
            trainer.strategy.model,
            self._config,
            optimizer=optimizer,
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            step="caller",
            **self._options,
        )
        self._epochs = EpochReports(session, self._config, optimizer, epoch=trainer.current_epoch)
        if self._saved is not None:
            session.load_state_dict(self._saved)
        elif trainer.global_step > 0:
            warnings.warn(
                f"the trainer goes on at step {trainer.global_step} from a checkpoint without a"
                " state of Accordion: its residuals and decisions start from the beginning",
                TrainingWarning,
                stacklevel=2,
            )
        self._saved, self._is_interrupted, self.session = None, False, session

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the session's epoch before."""
        self._epochs.begin(trainer.current_epoch)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:  # noqa: ARG002
        """Pass the step boundary after the backward pass, before gradients are clipped."""
        if self.session is None:
            return
        if self.session.source.has_gradients:
            self.session.step()
        elif isinstance(trainer.strategy.model, DistributedDataParallel):
            raise HookError(
                "no gradients were exchanged before the optimizer's step; under DDP,"
                " training_step() has to return a loss on all workers (return 0.0 * loss to leave a"
                " batch out)"
            )

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End a round of local steps, so that all workers validate the same parameters."""
        self._finish_round()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End a round of local steps before checkpoints of the epoch are saved."""
        self._finish_round()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:  # noqa: ARG002
        """Log the session's metrics as often as the trainer logs."""
        every = trainer.log_every_n_steps  # 0 logs nothing
        if self.session is not None and every and trainer.global_step % every == 0:
            self.log_dict(training_metrics(self.session))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all workers on rank 0, which writes the checkpoint; every worker
        calls this.
        """
        session = self.session
        if session is None:
            return {}
        if self._is_interrupted and session.world_size > 1:
            warnings.warn(
                "a checkpoint that is saved after an exception has no state of Accordion, because"
                " other workers may continue training; resume from it starts with residuals of 0",
                TrainingWarning,
                stacklevel=2,
            )
            return {}
        session.finish_round()  # in place, so that the checkpoint has what all workers share
        return session.gather_state_dict() or {}

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Detach from the model, so that a later `fit` can attach to it."""
        if self.session is not None:
            self.session.source.remove()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Keep checkpoints that are saved after the exception from waiting for other workers."""
        self._is_interrupted = True

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep a checkpoint's state until training starts."""
        self._saved = state_dict

    def _finish_round(self) -> None:
        if self.session is not None and not self._is_interrupted:
            self.session.finish_round()

    def _keep_state(self, trainer: Any) -> None:
        """Detach the session of an earlier `fit`; keep its state if this `fit` continues it."""
        if self.session is None:
            return
        self.session.source.remove()
        if self._saved is None and trainer.global_step > 0:
            self._saved = self.session.state_dict()


def check_trainer(trainer: Any) -> None:
    """Check that a trainer replicates the model on all processes and has one optimizer.

    Raises:
        HookError: it does not; the message says what to change.
    """
    name, model = type(trainer.strategy).__name__, trainer.strategy.model
    if not isinstance(model, DistributedDataParallel) and name != "SingleDeviceStrategy":
        raise HookError(
            f"Lightning trains with {name}, but Accordion compresses the gradients of "
            'DistributedDataParallel only; use Trainer(strategy="ddp")'
        )
    if len(trainer.optimizers) != 1:
        raise HookError(
            f"configure_optimizers() gave {len(trainer.optimizers)} optimizers, but"
            " AccordionCallback follows one; give one optimizer several groups of parameters, or"
            " train in a loop of your own with accordion.attach(..., optimizer=[first, second])"
        )


def check_checkpoints(callbacks: Sequence[Any]) -> None:
    """Check that no callback saves the model, but not the callbacks' state, between two epochs: it
    would save parameters of one worker within a round of local steps, which nothing announces.

    Raises:
        HookError: one does.
    """
    for callback in callbacks:
        # There are no public names.
        by_steps = bool(getattr(callback, "_every_n_train_steps", 0))
        by_time = getattr(callback, "_train_time_interval", None) is not None
        if getattr(callback, "save_weights_only", False) and (by_steps or by_time):
            raise HookError(
                f"{type(callback).__name__}(save_weights_only=True) saves within an epoch, and so"
                " within a round of local steps, in which every worker has its own parameters;"
                " save after validations or epochs, or set save_weights_only=False"
            )


__all__ = ["AccordionCallback", "check_checkpoints", "check_trainer"]
