"""Hugging Face Transformers: a callback for `Trainer`.

trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.add_callback(AccordionCallback(trainer, config))
trainer.train()
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from accordion.base.errors import HookError, MissingFrameworkError
from accordion.config import Config
from accordion.hook.attach_refusal import check_not_refused
from accordion.integrations.accelerate import check_strategy
from accordion.integrations.common import (
    EpochReports,
    distributed_module,
    load_state,
    save_state,
    training_metrics,
)
from accordion.session.saved_states import state_file
from accordion.session.session import Session, attach
from accordion.session.training_warnings import TrainingWarning

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingFrameworkError(
        f"accordion.integrations.transformers needs transformers ({error}): pip install"
        ' "transformers[torch]"'
    ) from error


_OTHER_FOLDER = "; name the trainer's checkpoint folder in AccordionCallback(..., resume_from=)"


class AccordionCallback(TrainerCallback):
    """Compresses a trainer's gradients, logs bytes and decisions, and saves its state in every
    checkpoint.

    A resumed run loads the state from `checkpoint-STEP` in `output_dir`, or from the folder that
    `TrainingArguments(resume_from_checkpoint=)` names, also with another number of processes. If
    the trainer resumes from another folder, give it as `resume_from`. `options` are those of
    `accordion.attach`.

    A round of local steps ends before the trainer evaluates and saves. They need
    `TrainingArguments(ddp_find_unused_parameters=False)`.

    `on_train_begin` raises HookError if the strategy is not DistributedDataParallel, if checkpoints
    are saved on each node, or on the second `train()` of a trainer.
    """

    def __init__(
        self, trainer: Any, config: Config, *, resume_from: str | Path | None = None, **options: Any
    ) -> None:
        self._trainer = trainer
        self._config = config.for_unchanged_loop()
        self._resume_from = resume_from
        self._options = options
        self.session: Session | None = None
        """The session of the run; None before `train()`."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Attach to the model that the trainer has wrapped by now."""
        check_not_refused()
        trainer = self._trainer
        check_strategy(trainer.accelerator)
        if self.session is not None:
            raise HookError(_trained_before_sentence(args))
        if args.save_on_each_node:
            raise HookError(
                "save_on_each_node=True is not supported, because rank 0 saves the state of all"
                " workers; remove it and set output_dir to a folder that all nodes reach"
            )
        module = distributed_module(trainer.model_wrapped, way_out="start the script with torchrun")
        optimizer, scaler = trainer.optimizer, trainer.accelerator.scaler
        session = attach(
            module,
            self._config,
            optimizer=optimizer,
            scaler=scaler,
            step="optimizer",
            **self._options,
        )
        self._epochs = EpochReports(session, self._config, optimizer, epoch=int(state.epoch or 0))
        if state.global_step > 0:
            folder = self._find_resumed(args, state)
            _warn_of_other_step(folder, state.global_step)
            load_state(session, folder, way_out=_OTHER_FOLDER)
        self.session = session
        if self._config.local_steps is not None:
            _put_last(trainer.callback_handler, self)
        self._next_epoch = max(int(state.epoch or 0), session.epoch)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End the session's epoch before."""
        # `state.epoch` stays below 1 if the data have no length, however often they are passed.
        epoch = max(int(state.epoch or 0), self._next_epoch)
        self._epochs.begin(epoch)
        self._next_epoch = epoch + 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End a round of local steps before the trainer evaluates or saves, and log the session's
        metrics together with the trainer's own.
        """
        if self.session is not None and (control.should_evaluate or control.should_save):
            self.session.finish_round()
        if control.should_log and self.session is not None:
            self._trainer.log(training_metrics(self.session))
            control.should_log = True  # `log` lowers it, and the trainer's own metrics follow

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End a round of local steps before what the trainer does at the end of an epoch, and of
        training.
        """
        if self.session is not None:
            self.session.finish_round()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Save the session's state in the checkpoint that the trainer has just written."""
        if self.session is not None and not args.save_only_model:
            save_state(self.session, _checkpoint_folder(args, state))

    def _find_resumed(self, args: Any, state: Any) -> Path:
        """Return the folder of the checkpoint that the trainer has loaded, as far as it can be
        known.
        """
        if self._resume_from is not None:
            return Path(self._resume_from)
        usual, given = _checkpoint_folder(args, state), args.resume_from_checkpoint
        # Scripts also put the argument of `train()` there: True, or "True" from a command line.
        if isinstance(given, str) and not (usual / state_file()).is_file() and Path(given).is_dir():
            return Path(given)
        return usual


def _put_last(handler: Any, callback: TrainerCallback) -> None:
    """Let a callback see, at the end of a step, what all others ask the trainer for."""
    others = [one for one in handler.callbacks if one is not callback]
    handler.callbacks = [*others, callback]  # a new list: the handler goes through the other one


def _trained_before_sentence(args: Any) -> str:
    if getattr(args, "auto_find_batch_size", False):
        return (
            "auto_find_batch_size=True starts training again with smaller batches, but a Trainer"
            " with AccordionCallback trains once; remove auto_find_batch_size and set"
            " per_device_train_batch_size to what fits into memory"
        )
    return "a Trainer with AccordionCallback trains once; create another Trainer and callback"


def _checkpoint_folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _warn_of_other_step(folder: Path, step: int) -> None:
    try:
        saved = json.loads((folder / "trainer_state.json").read_text()).get("global_step")
    except (OSError, ValueError):
        return
    if saved != step:
        warnings.warn(
            f"the trainer resumed at step {step}, but Accordion's state comes from {folder}, which"
            f" was saved at step {saved}{_OTHER_FOLDER}",
            TrainingWarning,
            stacklevel=3,
        )


__all__ = ["AccordionCallback"]
