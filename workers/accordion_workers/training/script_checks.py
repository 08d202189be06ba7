"""Finds mistakes of a user's script by which it would train wrongly, or not at all, without an
error.
"""

from __future__ import annotations

import logging
import traceback

import torch.distributed as dist
from torch.distributed import distributed_c10d

from accordion_workers.common.errors import CodeError
from accordion_workers.training.standalone_context import NO_JOB
from accordion_workers.training.train_state import TrainState

logger = logging.getLogger(__name__)

OTHER_ATTACH = (
    "attach() was called in a job of the Accordion service, which saves and records only what its"
    " own session trains; write `from accordion_workers import session` and"
    " session.attach(model, optimizer), with session.backward(loss) and session.step() in the loop,"
    " as the book's page 'My script as a job' shows; for Accelerate, Transformers and Lightning"
    " take accordion_workers.frameworks, as their page shows; or start the script with"
    " torchrun, outside of a job"
)
"""What a script of a job should write that calls `accordion.attach` or an integration."""
OF_FRAMEWORKS = (
    ", as the book's page 'My script as a job' shows; with another framework's loop, write"
    " train(trainer) (Transformers), fit(trainer, module, loader) (Lightning) or"
    " attach_accelerator(...) (Accelerate) of accordion_workers.frameworks, as their page shows"
)
"""How a script names what it trains."""


def check_backward(state: TrainState, *, has_run: bool) -> None:
    """Check, at a step, that its gradients come from `session.backward`; only that weighs and
    counts the loss of this rank's samples.

    Raises:
        CodeError: the script did not call it since the last step.
    """
    if not has_run:
        raise CodeError(
            f"session.step() was called in step {state.session.steps} without session.backward();"
            " write session.backward(loss) in place of loss.backward(), before each session.step()"
        )


def explain_second_batch(state: TrainState) -> CodeError:
    """Return the error of a script that reads another batch before its step."""
    return CodeError(
        "session.backward(loss) was called for another batch of session.batches() in step"
        f" {state.session.steps}; call session.step() after each backward(), because a batch has"
        f" all samples of a step ({state.session.global_batch}): for larger steps give a larger"
        " training.global_batch, and to save memory call session.backward() for parts of a batch"
    )


def check_trained(state: TrainState) -> None:
    """Check, at the end of an epoch or of the script, that the job has taken a step.

    Raises:
        CodeError: it has not.
    """
    if state.session.steps == 0:
        raise CodeError(
            "the script has not called session.step(), so nothing was trained; for each batch, call"
            " session.backward(loss) in place of loss.backward(), and session.step() in place of"
            " optimizer.step()"
        )


def check_epoch_trained(state: TrainState) -> None:
    """Check, at the end of an epoch, that a step was taken in it.

    Raises:
        CodeError: none was taken.
    """
    if state.position.samples == 0:
        raise CodeError(
            f"no step was taken in epoch {state.position.epoch}; give the loop a loader that starts"
            " anew in each epoch, unlike a generator, which is used up after one pass"
        )


def log_extra_epochs(state: TrainState) -> None:
    """Log on rank 0 that a script of a job ends here, because it goes on after the last epoch."""
    if state.context.rank == 0:
        state.context.link.log(
            f"warning: all epochs of the job (training.epochs {state.spec.training.epochs}) are"
            " trained, and the script goes on; it ends here once all is saved; write `for epoch in"
            " session.epochs(N)`, which ends by itself, or give training.epochs a larger number"
        )


def log_unread_epoch(state: TrainState) -> None:
    """Log on rank 0 that a script which resumed after the first epoch has not read which epoch it
    is; it may know that from an object of its own that was restored.
    """
    if state.context.rank != 0:
        return
    text = (
        f"training resumed in epoch {state.position.epoch}, and the script has read neither"
        " session.epochs() nor session.epoch; a loop over range(N) counts from 0 again; write"
        " `for epoch in session.epochs(N)` in place of it"
    )
    if state.context.launch.job_id == NO_JOB:
        logger.warning(text)
    else:
        state.context.link.log(f"warning: {text}")


def explain_second_group(error: Exception) -> CodeError | None:
    """Return what a script should write if torch refused to make a second process group; else
    None.
    """
    frames = traceback.extract_tb(error.__traceback__)
    is_refused = bool(frames) and frames[-1].name == "init_process_group"
    is_torch = bool(frames) and frames[-1].filename == distributed_c10d.__file__
    is_ours = isinstance(error, ValueError) and dist.is_initialized()
    if not (is_refused and is_torch and is_ours):
        return None
    return CodeError(
        "the workers of a job have a process group already; write `from accordion_workers import"
        " session` and session.init_process_group(...) in place of"
        " torch.distributed.init_process_group(...)"
    )


def log_replaced_epochs(state: TrainState, number: int) -> None:
    """Log on rank 0, at the start of the job, that it trains another number of epochs than its
    script asks for.
    """
    if state.context.rank == 0 and state.session.steps == 0:
        state.context.link.log(
            f"the job trains {state.spec.training.epochs} epochs: training.epochs of its spec"
            f" replaces the {number} of the script; give training.epochs {number} to train as many"
        )


def log_missing_epochs(state: TrainState) -> None:
    """Log on rank 0 that the script ended before the epochs of the job did, which may be meant."""
    done, epochs = state.position.epoch, state.spec.training.epochs
    if state.context.rank == 0 and done < epochs and not state.ends_early:
        state.context.link.log(
            f"warning: the script ended after {done} of the {epochs} epochs of the job"
            f" (training.epochs), in step {state.session.steps}; unless it, or a callback of its"
            " trainer, meant that, iterate over session.epochs(), or call session.end_epoch() at"
            " the end of each epoch, to train and record all of them"
        )


__all__ = [
    "OTHER_ATTACH",
    "check_backward",
    "check_epoch_trained",
    "check_trained",
    "explain_second_batch",
    "explain_second_group",
    "log_extra_epochs",
    "log_missing_epochs",
    "log_replaced_epochs",
    "log_unread_epoch",
]
