"""Reports from rank 0 to the service, and orders from the service to rank 0."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from accordion.base.errors import OverrideError
from accordion.base.messages import Decision, Override
from accordion.compress.step_signals import Signal
from accordion_workers.records.contract import (
    DesiredState,
    EpochRecord,
    Progress,
    RejectedRecord,
    Started,
)
from accordion_workers.training.balancing import micro_batches_by_rank
from accordion_workers.training.checkpointing import storage_use
from accordion_workers.training.standalone_context import NO_JOB
from accordion_workers.training.train_state import EpochBaseline, TrainState

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 0.25
"""Shortest time between two `Progress` reports: four a second look live and cost a fast step
nothing.
"""


def report_start(state: TrainState, resumed_from: str | None) -> None:
    """Report on rank 0 that this worker group trains, and follow orders from now on."""
    started = Started(
        world_size=state.context.world_size,
        epoch=state.position.epoch,
        step=state.session.steps,
        resumed_from=resumed_from,
        from_memory=resumed_from is not None and resumed_from != state.save_status.newest,
        steps_per_epoch=state.steps_per_epoch,
        layers=state.session.layers,
        parameters=sum(
            parameter.numel() for parameter in state.model.parameters() if parameter.requires_grad
        ),
        storage=storage_use(state),
        engine=state.spec.workers.engine if state.context.launch.job_id != NO_JOB else None,
        local_steps=state.spec.local_steps,
        **_previous_group_fields(state),
    )
    state.context.link.started(started, state.session.controller.state_dict())
    state.context.link.on_orders(lambda orders: apply_orders(state, orders))


def _previous_group_fields(state: TrainState) -> dict[str, Any]:
    """Return what the end of the previous group cost."""
    before = state.context.previous_group
    if before is None:
        return {}
    return {
        "cause": before.cause,
        "previous_world_size": before.world_size,
        "seconds_lost": max(0.0, state.phases.clock.now() - before.time),
        "steps_rolled_back": max(0, before.step - state.session.steps),
    }


def apply_orders(state: TrainState, orders: DesiredState) -> None:
    """Apply the desired state that users set; called by a thread of the link."""
    if orders.overrides != state.overrides:
        state.overrides = orders.overrides
        state.session.override(
            [override for override in orders.overrides if _is_acceptable(state, override)]
        )
    state.stop = orders.stop
    if orders.stop is not None:
        state.session.request(Signal.SAVE_STOP)


def _is_acceptable(state: TrainState, override: Override) -> bool:
    try:
        state.session.controller.check_override(override)
    except OverrideError as error:
        state.context.link.post(RejectedRecord(override_id=override.id, reason=str(error)))
        return False
    return True


def epoch_record(
    state: TrainState,
    decision: Decision,
    *,
    loss: float | None,
    metrics: Mapping[str, float],
    lr: float,
    skipped_steps: int,
) -> EpochRecord:
    """Return the record of the finished epoch; `decision` was in force at its end.

    Metrics from `ray.train.report` are added; for a name in both, the metric given here is kept.
    """
    statistic = state.decider.statistic
    return EpochRecord(
        epoch=state.position.epoch,
        step=state.session.steps,
        world_size=state.context.world_size,
        loss=loss,
        metrics={**state.context.control.take_metrics(), **metrics},
        lr=lr,
        global_batch=decision.global_batch or state.spec.training.global_batch,
        local_steps=decision.local_steps,
        samples=state.position.samples,
        skipped_steps=skipped_steps,
        seconds_by_phase={
            phase: seconds - state.epoch_baseline.seconds.get(phase, 0.0)
            for phase, seconds in state.phases.seconds.items()
        },
        bytes=state.spent().since(state.epoch_baseline.bytes),
        statistic_by_layer=_drop_nonfinite(statistic) if statistic is not None else None,
        agreement=state.decider.agreement,
        regime_by_layer=dict(decision.regime_by_layer),
        level_by_layer={layer: level.name for layer, level in decision.level_by_layer.items()},
    )


def take_epoch_baseline(state: TrainState) -> EpochBaseline:
    """Return the totals from which the next epoch's record counts."""
    return EpochBaseline(
        bytes=state.spent(),
        seconds=dict(state.phases.seconds),
        skipped_steps=state.session.skipped_steps,
    )


def report_progress(state: TrainState, *, last: bool = False, loss: float | None = None) -> None:
    """Report the job's progress on rank 0 after a step, at most every `PROGRESS_EVERY_S`.

    The last one before a stop is always sent; after the last epoch it has `loss`, the epoch's over
    all ranks, in place of the loss of rank 0's newest samples.
    """
    now = state.phases.clock.elapsed()
    passed = now - state.progress_s
    if not last and passed < PROGRESS_EVERY_S:
        return
    if loss is None and state.recent_loss.samples:
        loss = float(state.recent_loss.total) / state.recent_loss.samples
    launch = state.context.launch
    state.context.link.progress(
        Progress(
            attempt=launch.attempt,
            generation=state.context.generation,
            time=state.phases.clock.now(),
            epoch=state.position.epoch,
            step=state.session.steps,
            steps_per_epoch=state.steps_per_epoch,
            epochs=state.spec.training.epochs,
            world_size=state.context.world_size,
            loss=loss if loss is not None and math.isfinite(loss) else None,
            lr=state.rate,
            samples_per_s=state.progress_samples / passed if passed > 0 else 0.0,
            bytes=state.spent(),
            seconds_by_phase=dict(state.phases.seconds),
            compute_s_by_rank=state.context.control.compute_s_by_rank,
            micro_batches_by_rank=micro_batches_by_rank(state),
            step_s_by_phase=state.step_times.means(),
            link=dict(state.session.link),
            receive_s_by_rank=state.session.receive_s_by_rank,
            wait_s_by_level=dict(state.decider.wait_s_by_level),
            exchange_wait_s=state.decider.exchange_wait_s,
            global_batch=state.session.global_batch,
            steps=state.num_steps,
            failed_checkpoints=state.save_status.missed,
            failed_checkpoints_in_a_row=state.save_status.missed_in_a_row,
        )
    )
    state.progress_s, state.progress_samples = now, 0
    state.recent_loss = state.recent_loss.zero(state.context.device)


def _drop_nonfinite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}
