"""Accelerate: the loop of a script stays as it is, and trains as its job does.

loader = DataLoader(data, batch_sampler=session.batches(len(data)))  # not prepared
model, optimizer = accelerator.prepare(model, optimizer)
attach_accelerator(accelerator, model, optimizer, scheduler=scheduler)
for epoch in session.epochs(10):
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(loss(model(inputs), targets))
        optimizer.step()
        scheduler.step()
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import nn

from accordion.integrations.accelerate import check_strategy
from accordion.session.session import Session
from accordion_workers.common.errors import CodeError
from accordion_workers.training.script_batches import Batches
from accordion_workers.training.script_session import session


def attach_accelerator(accelerator: Any, model: nn.Module, optimizer: Any, **kept: Any) -> Session:
    """Attach what an accelerator has prepared; from then on `accelerator.backward` and
    `optimizer.step` are those of the session.

    `kept` are other objects to save, as for `session.attach`. A learning rate scheduler is not
    prepared: Accelerate would step it once for each worker, whose number changes.

    Raises:
        CodeError: the optimizer is not prepared, gradients are accumulated over batches, or
            `session.attach` refuses what it is given. The first `accelerator.backward` raises it
            if a scheduler or the loader of the job's batches is prepared.
        HookError: the strategy is not DistributedDataParallel.
    """
    check_strategy(accelerator)
    if accelerator.gradient_accumulation_steps != 1:
        raise CodeError(
            f"gradient_accumulation_steps is {accelerator.gradient_accumulation_steps}, but a batch"
            " of session.batches() has all samples of a step; give 1, and a larger"
            " training.global_batch for larger steps"
        )
    if not hasattr(optimizer, "optimizer"):
        raise CodeError(
            "the optimizer is not prepared; write model, optimizer = accelerator.prepare(model,"
            " optimizer) before attach_accelerator()"
        )
    attached = session.attach(model, optimizer.optimizer, scaler=accelerator.scaler, **kept)
    follow_session(accelerator, optimizer)
    return attached


def follow_session(accelerator: Any, optimizer: Any) -> None:
    """Let the backward pass and the steps of a prepared optimizer be those of the session."""

    def backward(loss: Any, **_: Any) -> None:
        _check_prepared(accelerator)
        session.backward(loss)

    def step(itself: Any, closure: Any = None) -> None:
        if closure is not None:
            raise CodeError(
                "optimizer.step(closure) evaluates the model again in a step; call"
                " accelerator.backward(loss) before optimizer.step()"
            )
        itself._is_overflow = not session.step()  # what `step_was_skipped` tells
        itself._opt_called = True  # PyTorch's schedulers warn without it

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    accelerator.backward, optimizer.step = backward, MethodType(step, optimizer)


def _check_prepared(accelerator: Any) -> None:
    """Check that only model and optimizer are prepared, and loaders of other data.

    Raises:
        CodeError: a scheduler is, or the loader of the job's batches.
    """
    if accelerator._schedulers:
        raise CodeError(
            "a scheduler is prepared, and would step once for each worker; leave it out of"
            " accelerator.prepare()"
        )
    samplers = [loader.batch_sampler for loader in accelerator._dataloaders]
    if any(isinstance(getattr(one, "batch_sampler", one), Batches) for one in samplers):
        raise CodeError(
            "the loader of session.batches() is prepared, and would divide this worker's batches"
            " among the workers again; leave it out of accelerator.prepare(), and move each batch"
            " to accelerator.device"
        )


__all__ = ["attach_accelerator"]
