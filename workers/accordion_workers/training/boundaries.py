"""Start of training, end of a step and end of an epoch, shared by `loop.py` and user scripts, so
that both make the same records, checks and checkpoints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from accordion.compress.step_signals import Signal
from accordion.session.session import StepResult
from accordion_workers.common.errors import LossNotFinite, PeerUnfit, RoundsNotFinite, TaskRaised
from accordion_workers.records.contract import Position
from accordion_workers.training.balancing import OWN_WORK, balance_workers
from accordion_workers.training.checkpointing import (
    is_due_after_epoch,
    is_due_after_step,
    restore_checkpoint,
    save_checkpoint,
)
from accordion_workers.training.data_checks import check_equal_on_ranks
from accordion_workers.training.evaluation import (
    MetricSums,
    Summary,
    gather_summaries,
    is_evaluation_due,
    mean_loss,
    mean_metrics,
    sync_drifted_parameters,
)
from accordion_workers.training.objective import read_objective
from accordion_workers.training.reports import (
    epoch_record,
    report_progress,
    report_start,
    take_epoch_baseline,
)
from accordion_workers.training.round_memory import remember_round
from accordion_workers.training.running_statistics import (
    adjust_batchnorm_momentum,
    average_buffers,
)
from accordion_workers.training.switches import finish_round, report_switch
from accordion_workers.training.train_state import LossSum, TrainState

logger = logging.getLogger(__name__)

Outcome = Literal["completed", "ended early", "stopped", "resized", "unsaved"]
"""`ended early`: the objective stopped improving; `stopped`: a user stopped the job; `resized`:
another group continues from the saved state; `unsaved`: a user cancelled the job while its storage
could not take its state.
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


def start_training(state: TrainState) -> str | None:
    """Resume from the newest checkpoint or remembered round, report the worker group's start, and
    accept signals from now on.

    Returns:
        Name of the checkpoint or round; None if training starts from scratch.

    Raises:
        StopRequested: a user stopped the job before its first step.
        StorageError: the storage cannot serve this job.
        TaskRaised: ranks, or this group and its checkpoint, differ in their number of samples.
    """
    check_equal_on_ranks(state)
    adjust_batchnorm_momentum(state)
    resumed_from = restore_checkpoint(state)
    state.own_work.start(state.phases.seconds)
    report_start(state, resumed_from)
    state.context.control.set_listener(state.session.request)
    return resumed_from


def finish_step(state: TrainState, batch: range, result: StepResult) -> None:
    """Record a step of the optimizer that trained on `batch`; all ranks together.

    Raises:
        LossNotFinite: too many steps were skipped in a row.
        PeerUnfit: another worker is gone, as its supervisor told this one in a round of local
            steps.
        RuntimeError: another worker is gone.
    """
    if state.context.control.broken_group == state.context.generation:
        raise PeerUnfit("another worker of this group is gone")
    state.position = Position(epoch=state.position.epoch, samples=batch.stop)
    state.progress_samples += len(batch)
    if result.switch is not None:
        report_switch(state, result.switch)
        balance_workers(state)
    _check_skipped_steps(state, taken=result.taken)
    _publish_step(state)
    report_progress(state)


def follow_signals(state: TrainState, signals: frozenset[Signal]) -> Outcome | None:
    """Save the state if the signals of a step or the job's spec ask for it, or remember it before
    a round of local steps; all ranks together.

    Returns:
        How training ends at this step boundary; None if it continues.
    """
    if Signal.SAVE_STOP in signals or Signal.RESIZE in signals:
        report_progress(state, last=True)
        outcome: Outcome = "stopped" if Signal.SAVE_STOP in signals else "resized"
        return outcome if save_checkpoint(state, wait=True) else "unsaved"
    if is_due_after_step(state, signals):
        save_checkpoint(state)
    remember_round(state)
    return None


def finish_epoch(
    state: TrainState, measure: Callable[[], MetricSums], *, rates: EpochRates, is_last: bool
) -> bool:
    """Evaluate if due, decide on the next epoch, report, and save if due; all ranks together.

    Args:
        state: state of training.
        measure: measures this worker's metrics; empty if no evaluation is due.
        rates: learning rates at the end of the epoch.
        is_last: whether no epoch follows.

    Returns:
        False if the job was cancelled and its final state could not be saved.

    Raises:
        TaskRaised: the metrics lack the objective's, and an evaluation is due.
    """
    epoch, decision = state.position.epoch, state.session.decision
    state.context.control.enter_phase("epoch end", epoch=epoch, step=state.session.steps)
    with state.phases("optimize"):
        finish_round(state)
    with state.phases("evaluate"):
        average_buffers(state)
        summaries = gather_summaries(state, measure())
        sync_drifted_parameters(state, summaries)
    with state.phases("decide"):
        switch = state.session.end_epoch(lr=rates.epoch, next_lr=rates.next_epoch)
    loss, metrics = mean_loss(summaries), mean_metrics(summaries)
    follow_objective(state, metrics, summaries, is_last=is_last)
    is_last = is_last or state.ends_early
    if not is_last:
        balance_workers(state)
    if state.context.rank == 0:
        logger.info(
            "epoch %d ends after step %d; %s", epoch, state.session.steps, switch.decision.reason
        )
    state.context.link.post(
        epoch_record(
            state,
            decision,
            loss=loss,
            metrics=metrics,
            lr=rates.last_step,
            skipped_steps=max(summary.skipped_steps for summary in summaries),
        )
    )
    if not is_last:
        report_switch(state, switch)
    open_epoch(state, epoch + 1)
    if is_last:
        report_progress(state, last=True, loss=loss)
    is_saved = True
    if is_due_after_epoch(state, epoch, is_last=is_last):
        is_saved = save_checkpoint(state, wait=is_last) or not is_last
    remember_round(state)
    return is_saved


def follow_objective(
    state: TrainState,
    metrics: Mapping[str, float],
    summaries: Sequence[Summary],
    *,
    is_last: bool,
) -> None:
    """Note the objective's value after an epoch, and log on rank 0 if training ends with it.

    Raises:
        TaskRaised: the metrics lack the objective's, and an evaluation is due.
    """
    objective, epoch = state.spec.objective, state.position.epoch
    if objective is None:
        return
    measured = {name for part in summaries for name in part.metric_totals}
    if objective.metric not in measured and not is_evaluation_due(
        state.spec, epoch, is_last=is_last
    ):
        state.objective = state.objective.after_unmeasured()
        return
    try:
        value = read_objective(objective, metrics, measured=measured)
    except ValueError as error:
        raise TaskRaised(state.session.steps, epoch, str(error)) from error
    state.objective = state.objective.after(objective, value)
    if state.ends_early and state.context.rank == 0:
        state.context.link.log(
            f"training ends after epoch {epoch}: {objective.metric} has not improved on"
            f" {state.objective.best} in {state.objective.stale_epochs} evaluations"
        )


def open_epoch(state: TrainState, epoch: int) -> None:
    """Reset position, loss and statistics for an epoch."""
    state.position = Position(epoch=epoch)
    state.epoch_loss = LossSum.zero(state.context.device)
    state.samples_at_averaging = 0
    state.epoch_baseline = take_epoch_baseline(state)
    phases = state.phases
    state.step_times.start_epoch(phases.clock.elapsed(), state.session.steps, phases.seconds)
    state.decider.statistic = state.decider.agreement = None


def _check_skipped_steps(state: TrainState, *, taken: bool) -> None:
    """Count the steps skipped in a row; the count is equal on all ranks, but for local steps.

    A skipped step that lowers the scale of the loss does not count: the next step differs from it.
    Where local steps are taken, and rounds of them undone, the rounds count.

    Raises:
        LossNotFinite: too many steps were skipped, or rounds undone, in a row.
    """
    place = (state.session.steps - 1, state.position.epoch)
    if (undone := state.session.rounds.undone_in_a_row) >= MAX_SKIPPED_IN_A_ROW:
        raise RoundsNotFinite(*place, undone)
    if not taken and state.scaler is not None and state.scaler.get_scale() > MIN_LOSS_SCALE:
        return
    state.skipped_in_a_row = 0 if taken else state.skipped_in_a_row + 1
    if state.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
        raise LossNotFinite(*place, state.skipped_in_a_row)


def _publish_step(state: TrainState) -> None:
    """Publish the newest step and the time that steps take to this worker's process."""
    control, phases = state.context.control, state.phases
    times = state.step_times
    if times.observe_step(phases.clock.elapsed(), state.session.steps, phases.seconds):
        step_s_by_phase = times.means()
        control.compute_s = sum(step_s_by_phase.get(phase, 0.0) for phase in OWN_WORK)
    control.step, control.stepped_at = state.session.steps, phases.clock.now()


__all__ = [
    "FLUSH_TIMEOUT_S",
    "MAX_SKIPPED_IN_A_ROW",
    "EpochRates",
    "Outcome",
    "finish_epoch",
    "finish_step",
    "follow_objective",
    "follow_signals",
    "open_epoch",
    "start_training",
]
