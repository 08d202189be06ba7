"""What rank 0 tells the world, and what the world tells rank 0."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from accordion.errors import OverrideError
from accordion.messages import Decision, Override, plan_digest
from accordion.session import Switch
from accordion.step_signals import Signal
from workers.contract import (
    AcksRecord,
    Bytes,
    DecisionRecord,
    DesiredState,
    EpochRecord,
    Progress,
    RejectedRecord,
    Started,
)
from workers.training.checkpointing import storage_use
from workers.training.standalone_context import NO_JOB
from workers.training.train_state import Mark, Run

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 0.25
"""Least distance of two `Progress`: four a second look live, and cost a fast step nothing."""


def announce(run: Run, resumed_from: str | None) -> None:
    """Say that this worker group trains, and take orders from now on; rank 0."""
    started = Started(
        world_size=run.context.world_size,
        epoch=run.position.epoch,
        step=run.session.steps,
        resumed_from=resumed_from,
        steps_per_epoch=run.steps_per_epoch,
        layers=run.session.layers,
        parameters=sum(
            parameter.numel() for parameter in run.model.parameters() if parameter.requires_grad
        ),
        storage=storage_use(run),
        engine=run.spec.workers.engine if run.context.launch.job_id != NO_JOB else None,
        **_taken_over(run),
    )
    run.context.link.started(started, run.session.controller.state_dict())
    run.context.link.on_orders(lambda orders: obey(run, orders))


def _taken_over(run: Run) -> dict[str, Any]:
    """What the group before this one cost by ending."""
    before = run.context.interruption
    if before is None:
        return {}
    return {
        "cause": before.cause,
        "previous_world_size": before.world_size,
        "seconds_lost": max(0.0, run.phases.clock.now() - before.time),
        "steps_rolled_back": max(0, before.step - run.session.steps),
    }


def obey(run: Run, orders: DesiredState) -> None:
    """Take over what people want; called by a thread of the link."""
    if orders.overrides != run.overrides:
        run.overrides = orders.overrides
        run.session.override(
            [override for override in orders.overrides if _possible(run, override)]
        )
    run.stop = orders.stop
    if orders.stop is not None:
        run.session.request(Signal.SAVE_STOP)


def _possible(run: Run, override: Override) -> bool:
    try:
        run.session.controller.check_override(override)
    except OverrideError as error:
        run.context.link.post(RejectedRecord(override_id=override.id, reason=str(error)))
        return False
    return True


def report_switch(run: Run, switch: Switch) -> None:
    """Say what all workers switched to, and which plan each of them runs now; rank 0."""
    for record in switch_records(switch):
        run.context.link.post(record)


def switch_records(switch: Switch) -> tuple[DecisionRecord, AcksRecord]:
    """Return the records of a switch: the decision, and every rank's acknowledgement of its
    plan.
    """
    decision = switch.decision
    acks = AcksRecord(
        epoch=decision.epoch,
        step=decision.step,
        world_size=len(switch.acks),
        digest=plan_digest(decision.level_by_layer, decision.global_batch),
        override_ids=decision.override_ids,
        acks=switch.acks,
    )
    return DecisionRecord(decision=decision), acks


def epoch_record(
    run: Run,
    decision: Decision,
    *,
    loss: float | None,
    metrics: Mapping[str, float],
    lr: float,
) -> EpochRecord:
    """Return the record of the finished epoch; `decision` was in force at its end.

    Metrics from `ray.train.report` are added; for a name in both, the metric given here is kept.
    """
    statistic = run.adviser.statistic
    return EpochRecord(
        epoch=run.position.epoch,
        step=run.session.steps,
        world_size=run.context.world_size,
        loss=loss,
        metrics={**run.context.helm.take_metrics(), **metrics},
        lr=lr,
        global_batch=decision.global_batch or run.spec.training.global_batch,
        samples=run.position.samples,
        skipped_steps=run.session.skipped_steps - run.epoch_mark.skipped_steps,
        seconds_by_phase={
            phase: seconds - run.epoch_mark.seconds.get(phase, 0.0)
            for phase, seconds in run.phases.seconds.items()
        },
        bytes=_difference(run.spent(), run.epoch_mark.bytes),
        statistic_by_layer=_finite(statistic) if statistic is not None else None,
        regime_by_layer=dict(decision.regime_by_layer),
        level_by_layer={layer: level.name for layer, level in decision.level_by_layer.items()},
    )


def mark(run: Run) -> Mark:
    """Where the next epoch's record begins to count."""
    return Mark(
        bytes=run.spent(), seconds=dict(run.phases.seconds), skipped_steps=run.session.skipped_steps
    )


def report_progress(run: Run, *, last: bool = False, loss: float | None = None) -> None:
    """Say where the job is, unless that was said just now; rank 0, after every step.

    The last word is said anyway, with `loss`, the epoch's over all ranks, in place of that of rank
    0's newest samples.
    """
    now = run.phases.clock.elapsed()
    passed = now - run.progress_s
    if not last and passed < PROGRESS_EVERY_S:
        return
    if not last and run.recent_loss.samples:
        loss = float(run.recent_loss.total) / run.recent_loss.samples
    launch = run.context.launch
    run.context.link.progress(
        Progress(
            attempt=launch.attempt,
            generation=run.context.generation,
            time=run.phases.clock.now(),
            epoch=run.position.epoch,
            step=run.session.steps,
            steps_per_epoch=run.steps_per_epoch,
            epochs=run.spec.training.epochs,
            world_size=run.context.world_size,
            loss=loss if loss is not None and math.isfinite(loss) else None,
            lr=float(run.optimizer.param_groups[0]["lr"]),
            samples_per_s=run.progress_samples / passed if passed > 0 else 0.0,
            bytes=run.spent(),
            seconds_by_phase=dict(run.phases.seconds),
            compute_s_by_rank=run.context.helm.compute_s_by_rank,
            global_batch=run.session.global_batch,
            steps=run.num_steps,
        )
    )
    run.progress_s, run.progress_samples = now, 0
    run.recent_loss = run.recent_loss.zero(run.context.device)


def _difference(now: Bytes, before: Bytes) -> Bytes:
    return Bytes(
        payload=now.payload - before.payload,
        wire=now.wire - before.wire,
        dense=now.dense - before.dense,
        fp16=now.fp16 - before.fp16,
    )


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}
