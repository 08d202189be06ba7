"""Transformers: a `Trainer` trains as its job does.

trainer = Trainer(model=model, args=arguments, train_dataset=data)
train(trainer)  # in place of trainer.train()

The job's `training.epochs`, `global_batch` and seed of the order hold in place of
`num_train_epochs`, `per_device_train_batch_size` and `seed`; everything else is the trainer's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from accordion.base.errors import MissingFrameworkError
from accordion.session.session import Session
from accordion_workers.common.errors import CodeError
from accordion_workers.frameworks.accelerate import attach_accelerator
from accordion_workers.training.script_batches import Batches
from accordion_workers.training.script_session import session

try:
    from transformers import TrainerCallback, TrainerState
    from transformers.trainer import TRAINER_STATE_NAME
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise MissingFrameworkError(
        f"accordion_workers.frameworks.transformers needs transformers ({error}): pip install"
        ' "transformers[torch]", or name it in `pip` of the job file'
    ) from error

_METRIC = "eval_"
"""What the trainer's metrics of the held-out data begin with."""
_SPEEDS = ("_runtime", "_samples_per_second", "_steps_per_second", "_preparation_time")
"""What the trainer measures of an evaluation beside the model."""


def train(trainer: Any, **options: Any) -> Any:
    """Train as `trainer.train()` does, and return what it returns; from the job's newest
    checkpoint, to its end or until its job is to stop or to continue with other workers.

    A batch has all of this worker's samples of a step, and the loss is their mean, weighted by
    their number. It is trained in forward passes of `training.micro_batch` samples.

    Raises:
        CodeError: the trainer has no training data of a known length, accumulates gradients, ends
            by a number of steps, searches for a batch size, or the job has batch levels.
        HookError: the strategy is not DistributedDataParallel.
    """
    if options:
        raise CodeError(
            f"train() takes no {', '.join(options)}: a job goes on from its newest checkpoint by"
            " itself; leave it out"
        )
    session.init_process_group()
    _check(trainer)
    batches = session.batches(len(trainer.train_dataset))
    kept = _TrainerState(trainer)
    attached = _attach(trainer, kept)
    _check_batch()
    is_read = session.state.position.samples >= batches.num_samples
    asked = math.ceil(trainer.args.num_train_epochs)
    epochs = _Epochs(kept, is_read=is_read, asked=asked)
    _check_best(kept)
    trainer.add_callback(epochs)
    trainer.callback_handler.callbacks.insert(0, _EpochCount(len(batches)))  # before its readers
    _follow_job(trainer, batches, attached)
    _cut_batches(trainer, session.state.spec.training.micro_batch)
    _end_epochs(trainer, epochs)
    steps = session.epoch * len(batches) + session.state.position.samples // session.global_batch
    if steps == 0:
        return trainer.train()
    with TemporaryDirectory() as folder:
        # A trainer finds its epoch by the steps; one whose samples are all read is still to end.
        steps = (session.epoch + 1) * len(batches) - 1 if is_read else steps
        _write_state(trainer, kept, Path(folder), steps=steps, epoch=session.epoch)
        return trainer.train(resume_from_checkpoint=folder)


class _TrainerState:
    """What a trainer adds to a checkpoint of its job: the schedule of its learning rate, which
    exists only once training begins, and its own history.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.history: dict[str, Any] = {}
        self._schedule: Any = None
        """Loaded state of the schedule, until it exists."""
        self._settings: list[dict[str, Any]] = []
        """Loaded settings of the optimizer's groups, which a new schedule changes."""

    def state_dict(self) -> dict[str, Any]:
        """Return plain values."""
        schedule = self._trainer.lr_scheduler
        state = self._schedule if schedule is None else schedule.state_dict()
        history = asdict(self._trainer.state) | {"stateful_callbacks": self._read_callbacks()}
        return {"schedule": state, "history": json.dumps(history)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep a saved state until training begins."""
        self._schedule, self.history = state["schedule"], json.loads(state["history"])
        groups = self._trainer.optimizer.param_groups
        self._settings = [
            {name: value for name, value in group.items() if name != "params"} for group in groups
        ]

    def _read_callbacks(self) -> Any:
        """Return the states of the callbacks, for `restore_callback_states_from_checkpoint`."""
        found = [*self._trainer.callback_handler.callbacks, self._trainer.control]
        kept = [one for one in found if isinstance(one, ExportableState)]
        return TrainerState(stateful_callbacks=kept).stateful_callbacks

    def begin(self) -> None:
        """Continue the schedule where it was, now that it exists."""
        if self._schedule is not None:
            self._trainer.lr_scheduler.load_state_dict(self._schedule)
            self._schedule = None
            for group, settings in zip(
                self._trainer.optimizer.param_groups, self._settings, strict=True
            ):
                group.update(settings)


class _Epochs(TrainerCallback):
    """Ends the session's epochs with the trainer's, with the metrics of the evaluations that follow
    an epoch.
    """

    def __init__(self, kept: _TrainerState, *, is_read: bool, asked: int) -> None:
        self._kept, self._is_read, self._asked = kept, is_read, asked
        self._epochs: Iterator[int] = iter(())
        self._is_over = False
        """Whether the epoch is over but for its evaluations."""
        self._metrics: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._kept.begin()
        self._epochs = session.epochs(self._asked)  # a job's log says what replaces them

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        next(self._epochs, None)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if control.should_evaluate or control.should_save:
            session.finish_round()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._is_read:  # the trainer, which found no batch, would end
            self._is_read, control.should_training_stop = False, False
            state.global_step, state.epoch = state.global_step + 1, float(session.epoch + 1)
        self._is_over, self._metrics = True, {}

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        self._metrics |= more["metrics"]  # of one of several data sets

    def end_evaluated(self, control: Any) -> None:
        """End the epoch if it is over, once the trainer has done what follows from its metrics."""
        if not self._is_over:
            return
        self._is_over = False
        numbers = {
            _name_metric(name): float(value)
            for name, value in self._metrics.items()
            if name.startswith(_METRIC)
            and isinstance(value, int | float)
            and not name.endswith(_SPEEDS)
        }
        session.end_epoch(**numbers)
        if session.state.ends_early:
            control.should_training_stop = True


class _EpochCount(TrainerCallback):
    """Counts epochs by steps; a trainer that goes on within one would count from its beginning."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        state.epoch = state.global_step / self._steps


def _name_metric(name: str) -> str:
    """Return the name of a metric in the record of an epoch, where `loss` is that of training."""
    name = name.removeprefix(_METRIC)
    return "held_out_loss" if name == "loss" else name


def _check(trainer: Any) -> None:
    args = trainer.args
    data = trainer.train_dataset
    if not hasattr(data, "__len__") or isinstance(data, IterableDataset):
        raise CodeError(
            "the trainer has no train_dataset with a length and rows by number, and a job divides"
            " them among its workers; give one with len() and [], or write the loop with"
            " session.batches()"
        )
    if args.gradient_accumulation_steps != 1:
        raise CodeError(
            f"gradient_accumulation_steps is {args.gradient_accumulation_steps}, but a batch of a"
            " job has all samples of a step; give 1, and in the job file training.global_batch"
            " samples in a step and training.micro_batch in a forward pass"
        )
    if args.max_steps > 0:
        raise CodeError(
            f"max_steps is {args.max_steps}, but a job ends by training.epochs; leave it out"
        )
    if args.auto_find_batch_size:
        raise CodeError(
            "auto_find_batch_size changes the batch, which the job file sets for all workers; leave"
            " it out, and lower training.micro_batch if memory is short"
        )


def _check_batch() -> None:
    if session.state.spec.batch is not None:
        raise CodeError(
            "the job file has batch levels, but a Trainer counts its epochs in steps of one size;"
            " leave `batch` out, or write the loop with session.batches()"
        )


def _check_best(kept: _TrainerState) -> None:
    """Tell of a best model that was saved before a stop and is not there any more."""
    best = kept.history.get("best_model_checkpoint")
    if best and not Path(best).is_dir():
        session.state.context.link.log(
            f"warning: the trainer's best model so far is in {best}, which this worker does not"
            " have, so the best of the later epochs is loaded at the end; give TrainingArguments an"
            " output_dir that all workers reach"
        )


def _attach(trainer: Any, kept: _TrainerState) -> Session:
    """Wrap model and optimizer as the trainer would, and resume them."""
    trainer.model_init = None  # it has made the model; another one would be trained, and not saved
    trainer.create_optimizer()
    model = trainer._wrap_model(trainer.model_wrapped)  # sets what DDP gets
    model, optimizer = trainer.accelerator.prepare(model, trainer.optimizer)
    trainer.model_wrapped, trainer.optimizer = model, optimizer
    return attach_accelerator(trainer.accelerator, model, optimizer, trainer=kept)


def _follow_job(trainer: Any, batches: Batches, attached: Session) -> None:
    """Let the trainer read the job's batches, for its epochs, and leave checkpoints to it."""
    args = trainer.args
    if session.job_epochs is not None:
        args.num_train_epochs = session.job_epochs
    args.ignore_data_skip = True
    if not args.load_best_model_at_end:
        args.save_strategy = type(args.save_strategy)("no")
    elif session.job_epochs is not None:
        # The folder of the code is this worker's own. An absolute path stays as it is.
        storage = session.state.context.launch.storage
        args.output_dir = str(Path(storage, "trainer", args.output_dir))
    trainer.model_accepts_loss_kwargs = False  # the loss is a mean over this worker's samples
    args.average_tokens_across_devices = False  # also that of a compute_loss_func
    trainer.get_train_dataloader = lambda: _create_loader(trainer, batches)
    trainer._load_from_checkpoint = lambda *_, **__: None  # the session has loaded
    trainer.accordion = attached


def _cut_batches(trainer: Any, size: int) -> None:
    """Train a batch in forward passes of so many samples, whose gradients add up."""
    whole, accelerator = trainer.training_step, trainer.accelerator
    backward = accelerator.backward

    def training_step(model: Any, inputs: Any, items: Any = None) -> Any:
        # A `compute_loss_func` divides by the items of the whole batch, so its losses add up.
        adds_up = trainer.compute_loss_func is not None and items is not None
        parts, total = list(_cut(inputs, size)), 0.0
        for number, (part, of_batch) in enumerate(parts, start=1):
            share = 1.0 if adds_up else of_batch
            accelerator.backward = lambda loss, share=share, **_: backward(loss * share)
            is_last = number == len(parts)
            # Accelerate's own leaves out the DDP of a single worker.
            with nullcontext() if is_last else getattr(model, "no_sync", nullcontext)():
                total += whole(model, part, items) * share
        return total

    trainer.training_step = training_step


def _cut(inputs: Any, size: int) -> Iterator[tuple[Any, float]]:
    """Yield parts of a batch, each with its share of the samples; all of one whose tensors do not
    agree on their number.
    """
    values = inputs.values() if isinstance(inputs, Mapping) else ()
    tensors = [one for one in values if isinstance(one, torch.Tensor)]
    numbers = {len(one) if one.dim() else 0 for one in tensors}
    [number] = numbers if len(numbers) == 1 else [0]
    if number <= size:
        yield inputs, 1.0
        return
    for start in range(0, number, size):
        rows = slice(start, start + size)
        part = {
            name: one[rows] if isinstance(one, torch.Tensor) else one
            for name, one in inputs.items()
        }
        yield part, len(range(number)[rows]) / number


def _end_epochs(trainer: Any, epochs: _Epochs) -> None:
    """End each epoch of the session after the trainer's evaluation, the step of a schedule that
    follows its metrics, and the trainer's own checkpoint, so that all of them are saved.
    """
    evaluate = trainer._maybe_log_save_evaluate

    def evaluate_and_end(*args: Any, **options: Any) -> None:
        evaluate(*args, **options)
        epochs.end_evaluated(trainer.control)

    trainer._maybe_log_save_evaluate = evaluate_and_end


def _create_loader(trainer: Any, batches: Batches) -> DataLoader[Any]:
    """Return a loader as the trainer's, with the job's batches; it is not prepared."""
    usual = type(trainer).get_train_dataloader(trainer)
    if len(usual.dataset) != batches.num_samples:
        raise CodeError(
            f"get_train_dataloader() reads {len(usual.dataset)} samples, and train_dataset has"
            f" {batches.num_samples}; give the trainer the data that it reads as train_dataset"
        )
    return DataLoader(
        usual.dataset,
        batch_sampler=batches,
        collate_fn=usual.collate_fn,
        num_workers=usual.num_workers,
        pin_memory=usual.pin_memory and torch.cuda.is_available(),
        worker_init_fn=usual.worker_init_fn,
        persistent_workers=usual.persistent_workers,
        prefetch_factor=usual.prefetch_factor,
        multiprocessing_context=usual.multiprocessing_context,
    )


def _write_state(
    trainer: Any, kept: _TrainerState, folder: Path, *, steps: int, epoch: int
) -> None:
    """Write the file by which a trainer finds epoch and step in which it continues."""
    history = kept.history or asdict(trainer.state)
    history |= {"global_step": steps, "epoch": float(epoch)}
    (folder / TRAINER_STATE_NAME).write_text(json.dumps(history))


__all__ = ["train"]
