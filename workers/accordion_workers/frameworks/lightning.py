"""PyTorch Lightning: a `Trainer` trains as its job does.

trainer = Trainer(max_epochs=10, **trainer_options())
loader = DataLoader(data, batch_sampler=session.batches(len(data)))
fit(trainer, module, loader, held_out)  # in place of trainer.fit(module, loader, held_out)

The job's `training.epochs`, `global_batch` and seed of the order hold in place of `max_epochs`, the
loader's batch size and its order; everything else is the trainer's and the module's.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from accordion.integrations.lightning import check_trainer, import_lightning
from accordion_workers.common.errors import CodeError
from accordion_workers.training.script_batches import Batches
from accordion_workers.training.script_session import session

_lightning = import_lightning()
_Environment: Any = importlib.import_module(
    f"{_lightning.__name__}.plugins.environments"
).LightningEnvironment


def trainer_options() -> dict[str, Any]:
    """Return the arguments by which a `Trainer` is one worker of this group, and leaves batches and
    checkpoints to the job.
    """
    session.init_process_group()
    return {
        "accelerator": "cpu" if session.device == "cpu" else "gpu",
        "devices": 1 if session.device == "cpu" else [torch.device(session.device).index],
        "num_nodes": session.world_size,
        "strategy": "ddp",
        "plugins": [_JobEnvironment()],
        "use_distributed_sampler": False,
        "enable_checkpointing": False,
    }


def fit(trainer: Any, module: Any, loader: DataLoader[Any], *more: Any, **options: Any) -> None:
    """Train as `trainer.fit(module, loader, ...)` does; from the job's newest checkpoint, to its
    end or until its job is to stop or to continue with other workers.

    The metrics of an epoch are those that the module has logged. A batch has all of this worker's
    samples of a step, and the loss is their mean, weighted by their number.

    Raises:
        CodeError: the loader does not read `session.batches`, or the module or the trainer takes
            steps in a way of its own.
        HookError: the strategy is not DDP, or there is not exactly one optimizer.
    """
    if options.get("ckpt_path") is not None:
        raise CodeError(
            f"ckpt_path is {options['ckpt_path']!r}, but a job resumes from its own checkpoints;"
            " leave it out, and load weights to begin with into the module before fit()"
        )
    _check_trainer(trainer, loader)
    _check_module(trainer, module)
    if session.job_epochs is not None:
        trainer.fit_loop.max_epochs = session.job_epochs
    batches = _JobLoader(trainer, module, loader)
    trainer.callbacks.append(_Epochs(batches))
    trainer.fit(module, batches, *more, **options)


class _JobEnvironment(_Environment):
    """Ranks of this worker; Ray has started all of them."""

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def world_size(self) -> int:
        return session.world_size

    def global_rank(self) -> int:
        return session.rank

    def node_rank(self) -> int:
        return session.rank  # one worker for each "node", whatever the machine is

    def local_rank(self) -> int:
        return 0

    def set_world_size(self, size: int) -> None:
        pass

    def set_global_rank(self, rank: int) -> None:
        pass


class _JobLoader:
    """The script's loader; attaches what the trainer has wrapped when it is first asked for an
    iterator, before any batch is read.
    """

    def __init__(self, trainer: Any, module: Any, loader: DataLoader[Any]) -> None:
        self._trainer, self._module, self._loader = trainer, module, loader
        self._is_attached = False
        self._is_read = False
        """Whether the job resumes in an epoch whose samples are all read."""
        self.is_waiting = False
        """Whether the job resumes at the start of an epoch, for which the trainer asks once more
        when that has begun.
        """

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if not self._trainer.optimizers:  # `configure_optimizers` asks how many steps there are
            return iter(())
        if not self._is_attached:
            self._is_attached = True
            self._resume()
        if self.is_waiting:
            return iter(())
        return self._read_nothing() if self._is_read else iter(self._loader)

    def _resume(self) -> None:
        _attach(self._trainer, self._module)
        position = session.state.position
        self._is_read = position.samples >= len(session.state.data)
        # An epoch whose samples are all read is still to end: its last batch will be nothing.
        done = len(self) - 1 if self._is_read else position.samples // session.global_batch
        self.is_waiting = position.epoch > 0 and done == 0 and not self._is_read
        _set_progress(self._trainer, done, steps=position.epoch * len(self) + done + self._is_read)

    def _read_nothing(self) -> Iterator[Any]:
        """Yield the batch that a trainer passes over, without a step of the schedules either."""
        yield from self._loader
        self._is_read = False
        loop = self._trainer.fit_loop.epoch_loop
        loop.update_lr_schedulers = lambda *_, **__: None
        yield None


class _Epochs(_lightning.Callback):  # type: ignore[name-defined]
    """Ends the session's epochs once the trainer's are over, with their schedules' steps."""

    def __init__(self, batches: _JobLoader) -> None:
        self._batches = batches
        self._is_trained = False
        self._recorded: dict[str, Any] = {}
        """Metrics of the epochs before, of which the trainer keeps those not measured again."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        trainer.fit_loop._combined_loader = None  # read again, now that there is an optimizer

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:  # noqa: ARG002
        vars(trainer.fit_loop.epoch_loop).pop("update_lr_schedulers", None)  # of `_read_nothing`
        session.follow_last_step()  # a validation draws random numbers before it calls anybody

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._batches.is_waiting = False
        self._end(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if not trainer.sanity_checking:
            session.finish_round()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._is_trained = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._end(trainer)

    def _end(self, trainer: Any) -> None:
        if self._is_trained:
            self._is_trained = False
            kept, self._recorded = self._recorded, dict(trainer.callback_metrics)
            new = {name: one for name, one in self._recorded.items() if one is not kept.get(name)}
            session.end_epoch(**{name: float(one) for name, one in new.items() if name != "loss"})


def _check_trainer(trainer: Any, loader: DataLoader[Any]) -> None:
    if not isinstance(getattr(loader, "batch_sampler", None), Batches):
        raise CodeError(
            "the training data of fit() do not read the job's batches; give a"
            " DataLoader(data, batch_sampler=session.batches(len(data)))"
        )
    if trainer.accumulate_grad_batches != 1:
        raise CodeError(
            f"accumulate_grad_batches is {trainer.accumulate_grad_batches}, but a batch of"
            " session.batches() has all samples of a step; give 1, and a larger"
            " training.global_batch for larger steps"
        )
    if trainer.max_steps > 0:
        raise CodeError(
            f"max_steps is {trainer.max_steps}, but a job ends by training.epochs; leave it out"
        )
    limit = trainer.limit_train_batches  # which overfit_batches sets too
    if isinstance(limit, int) or limit != 1.0:
        raise CodeError(
            f"limit_train_batches is {limit}, but a job trains all samples of an epoch; leave it"
            " out, and give fewer samples, such as a torch.utils.data.Subset"
        )


def _check_module(trainer: Any, module: Any) -> None:
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise CodeError("precision 16-mixed is not supported in a job; give bf16-mixed or 32")
    own = _lightning.LightningModule
    for name in ("optimizer_step", "backward"):
        if getattr(type(module), name) is not getattr(own, name):
            raise CodeError(f"the module has a {name}() of its own, which the session replaces")
    if not module.automatic_optimization:
        raise CodeError(
            "automatic_optimization is False, so the module steps by itself; write the loop with"
            " session.backward(loss) and session.step() instead of fit()"
        )


def _attach(trainer: Any, module: Any) -> None:
    """Attach and resume the wrapped module."""
    check_trainer(trainer)
    [optimizer] = trainer.optimizers
    schedules = {
        f"schedule_{number}": one.scheduler
        for number, one in enumerate(trainer.lr_scheduler_configs)
    }
    session.attach(
        trainer.strategy.model, optimizer, callbacks=_CallbackStates(trainer), **schedules
    )
    if session.state.spec.batch is not None:
        raise CodeError(
            "the job file has batch levels, but a Trainer counts its epochs in steps of one size;"
            " leave `batch` out, or write the loop with session.batches()"
        )
    _replace_step(trainer, module)


class _CallbackStates:
    """States of a trainer's callbacks, such as how long EarlyStopping has waited."""

    def __init__(self, trainer: Any) -> None:
        self._callbacks = trainer.callbacks

    def state_dict(self) -> dict[str, Any]:
        return {one.state_key: one.state_dict() for one in self._callbacks}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        for one in self._callbacks:
            if state := states.get(one.state_key):
                one.load_state_dict(state)


def _replace_step(trainer: Any, module: Any) -> None:
    """Let the backward pass and the step be those of the session."""

    def backward(loss: Any, *_: Any, **__: Any) -> None:
        session.backward(loss)

    def optimizer_step(*given: Any) -> None:
        _, _, optimizer, closure = given
        raw = getattr(optimizer, "optimizer", optimizer)
        # With the hook before the step, and the clipping of gradients.
        trainer.precision_plugin._wrap_closure(module, raw, closure)
        session.step()

    module.backward, module.optimizer_step = backward, optimizer_step


def _set_progress(trainer: Any, done: int, *, steps: int) -> None:
    """Let the trainer continue in this epoch, after `done` of its steps."""
    loop = trainer.fit_loop
    batches = loop.epoch_loop
    for counts, number in (
        (loop.epoch_progress, session.epoch),
        (batches.batch_progress, done),
    ):
        for one in (counts.total, counts.current):
            one.ready = one.started = one.processed = one.completed = number
    step = batches.automatic_optimization.optim_progress.optimizer.step
    step.total.ready = step.total.completed = steps
    batches._batches_that_stepped = steps  # by which loggers count
    if done:
        batches.restarting = True


__all__ = ["fit", "trainer_options"]
