"""Finds mistakes of a user's script by which it would train wrongly, or not at all, without an
error.
"""

from __future__ import annotations

from workers.errors import CodeError
from workers.training.train_state import TrainState


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


def log_replaced_epochs(state: TrainState, number: int) -> None:
    """Log on rank 0, at the start of the job, that it trains another number of epochs than its
    script asks for.
    """
    if state.context.rank == 0 and state.session.steps == 0:
        state.context.link.log(
            f"the job trains {state.spec.training.epochs} epochs: training.epochs of its spec"
            f" replaces session.epochs({number}) of the script; give training.epochs {number} to"
            " train as many"
        )


def log_missing_epochs(state: TrainState) -> None:
    """Log on rank 0 that the script ended before the epochs of the job did, which may be meant."""
    done, epochs = state.position.epoch, state.spec.training.epochs
    if state.context.rank == 0 and done < epochs and not state.ends_early:
        state.context.link.log(
            f"warning: the script ended after {done} of the {epochs} epochs of the job"
            f" (training.epochs), in step {state.session.steps}; iterate over session.epochs(), or"
            " call session.end_epoch() at the end of each epoch, to train and record all of them"
        )


__all__ = ["check_backward", "check_trained", "log_missing_epochs", "log_replaced_epochs"]
