"""Start of training, end of a step, end of an epoch: shared by `loop.py` and the session of a
user's own script, so that both keep the same records, checks and checkpoints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from accordion.session import StepResult
from accordion.step_signals import Signal
from workers.contract import Position
from workers.errors import LossNotFinite
from workers.training.checkpointing import is_due, is_due_after_epoch, restore, save
from workers.training.evaluation import MetricSums, agree, gather_summaries, mean_loss, mean_metrics
from workers.training.reports import announce, epoch_record, mark, report_progress, report_switch
from workers.training.running_statistics import average_buffers, keep_memory, mark_buffers_equal
from workers.training.train_state import LossSum, Run

logger = logging.getLogger(__name__)

Outcome = Literal["completed", "stopped", "resized", "unsaved"]
"""`stopped`: a user stopped the job; `resized`: another group continues from the saved state;
`unsaved`: a user cancelled the job while its storage could not take its state.
"""

MAX_SKIPPED_IN_A_ROW = 10
"""Steps that may be skipped in a row before the job fails. One bad batch costs one step and a loss
spike a few; parameters do not change while steps are skipped, so a longer run of them cannot
recover.
"""
MIN_LOSS_SCALE = 1.0
"""Smallest scale of the loss in fp16; a skipped step at a larger scale only lowers the scale."""
FLUSH_TIMEOUT_S = 10.0
"""Time limit for delivering a worker's last records at its end; the journal holds them anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRates:
    """Learning rates at the end of an epoch."""

    last_step: float
    """Rate of the epoch's last step; it goes into the epoch's record."""
    epoch: float
    """Rate of the epoch by the schedule, before batch scaling and warm-up."""
    next_epoch: float
    """Rate of the next epoch by the schedule."""


def start_training(run: Run) -> str | None:
    """Resume from the newest checkpoint, announce the worker group, and accept signals from now on.

    Returns:
        Name of the checkpoint; None if training starts from scratch.

    Raises:
        StopRequested: a user stopped the job before its first step.
        StorageError: the storage cannot serve this job.
    """
    keep_memory(run)
    resumed_from = restore(run)
    mark_buffers_equal(run)
    announce(run, resumed_from)
    run.context.helm.listen(run.session.request)
    return resumed_from


def finish_step(run: Run, batch: range, result: StepResult) -> None:
    """Record a step of the optimizer that trained on `batch`; all ranks together.

    Raises:
        LossNotFinite: too many steps were skipped in a row.
    """
    run.position = Position(epoch=run.position.epoch, samples=batch.stop)
    run.progress_samples += len(batch)
    if result.switch is not None:
        report_switch(run, result.switch)
    _check_skipped_steps(run, taken=result.taken)
    _publish_step(run)
    report_progress(run)


def follow_signals(run: Run, signals: frozenset[Signal]) -> Outcome | None:
    """Save the state if the signals of a step or the job's spec ask for it; all ranks together.

    Returns:
        How training ends at this step boundary; None if it goes on.
    """
    if Signal.SAVE_STOP in signals or Signal.RESIZE in signals:
        outcome: Outcome = "stopped" if Signal.SAVE_STOP in signals else "resized"
        return outcome if save(run, wait=True) else "unsaved"
    if is_due(run, signals):
        save(run)
    return None


def finish_epoch(
    run: Run, measure: Callable[[], MetricSums], *, rates: EpochRates, is_last: bool
) -> bool:
    """Evaluate, decide on the next epoch, report, and save if due; all ranks together.

    Returns:
        False if the job was cancelled and its final state could not be saved.
    """
    epoch, decision = run.position.epoch, run.session.decision
    run.context.helm.enter("epoch end", epoch=epoch, step=run.session.steps)
    with run.phases("evaluate"):
        average_buffers(run)
        summaries = gather_summaries(run, measure())
        agree(run, summaries)
    with run.phases("decide"):
        switch = run.session.end_epoch(lr=rates.epoch, next_lr=rates.next_epoch)
    if run.context.rank == 0:
        logger.info(
            "epoch %d ends after step %d; %s", epoch, run.session.steps, switch.decision.reason
        )
    loss, metrics = mean_loss(summaries), mean_metrics(summaries)
    run.context.link.post(
        epoch_record(run, decision, loss=loss, metrics=metrics, lr=rates.last_step)
    )
    if not is_last:
        report_switch(run, switch)
    open_epoch(run, epoch + 1)
    if is_last:
        report_progress(run, last=True, loss=loss)
    if is_due_after_epoch(run, epoch, is_last=is_last):
        return save(run, wait=is_last) or not is_last
    return True


def open_epoch(run: Run, epoch: int) -> None:
    """Reset position, loss and statistics for an epoch."""
    run.position = Position(epoch=epoch)
    run.epoch_loss = LossSum.zero(run.context.device)
    run.samples_at_averaging = 0
    run.epoch_mark = mark(run)
    run.adviser.statistic = None


def _check_skipped_steps(run: Run, *, taken: bool) -> None:
    """Count the steps skipped in a row; the count is equal on all ranks.

    A skipped step that lowers the scale of the loss does not count: the next step differs from it.

    Raises:
        LossNotFinite: too many steps were skipped in a row.
    """
    if not taken and run.scaler is not None and run.scaler.get_scale() > MIN_LOSS_SCALE:
        return
    run.skipped_in_a_row = 0 if taken else run.skipped_in_a_row + 1
    if run.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
        raise LossNotFinite(run.session.steps - 1, run.position.epoch, run.skipped_in_a_row)


def _publish_step(run: Run) -> None:
    """Publish the newest step and its compute time to this worker's process."""
    helm, computed = run.context.helm, run.phases.seconds["compute"]
    helm.compute_s, run.computed_s = computed - run.computed_s, computed
    helm.step, helm.stepped_at = run.session.steps, run.phases.clock.now()


__all__ = [
    "FLUSH_TIMEOUT_S",
    "MAX_SKIPPED_IN_A_ROW",
    "EpochRates",
    "Outcome",
    "finish_epoch",
    "finish_step",
    "follow_signals",
    "open_epoch",
    "start_training",
]
