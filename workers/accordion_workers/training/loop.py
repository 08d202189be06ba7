"""One worker's training loop, from top to bottom: build, resume, epochs, batches, micro-batches.

Runs in any process group: Ray's, the one of a test, or the threads of `accordion simulate`. With
local steps the loop is the same: within a round the session does not exchange, so every gradient,
clipped norm and step below is this worker's own, and the last step of a round makes the workers'
parameters equal again.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from accordion_workers.data.nested import to_device
from accordion_workers.records.contract import JobSpec
from accordion_workers.training.boundaries import (
    FLUSH_TIMEOUT_S,
    EpochRates,
    Outcome,
    finish_epoch,
    finish_step,
    follow_signals,
    start_training,
)
from accordion_workers.training.clock import Clock
from accordion_workers.training.context import WorkerContext
from accordion_workers.training.evaluation import MetricSums, is_evaluation_due, measure_metrics
from accordion_workers.training.resume import StopRequested
from accordion_workers.training.sampler import (
    batch_at,
    derive_seed,
    epoch_order,
    loss_weight,
    micro_batches,
    rank_shard,
)
from accordion_workers.training.train_state import TrainState, build_train_state, seeded_generators
from accordion_workers.training.worker_mesh import WorkerMesh


def train_job(context: WorkerContext, clock: Clock | None = None) -> Outcome:
    """Train the job from its newest checkpoint to its end, or until a requested stop is saved.

    Raises:
        TaskRaised: the task's own code raised.
        LossNotFinite: too many steps were skipped in a row.
        StorageError: the storage cannot serve this job.
    """
    torch.set_num_threads(context.launch.spec.workers.num_threads)
    mesh = WorkerMesh()
    try:
        state = build_train_state(context, clock or Clock(), mesh)
        start_training(state)
        outcome = train_epochs(state)
    except StopRequested as stop:
        context.link.log(f"the job stops before its first step here: {stop}")
        return "stopped"
    finally:
        mesh.forget()
    context.control.enter_phase("finished", epoch=state.position.epoch, step=state.session.steps)
    context.link.flush(FLUSH_TIMEOUT_S)
    return outcome


def train_epochs(state: TrainState) -> Outcome:
    """Train the remaining epochs."""
    while state.position.epoch < state.spec.training.epochs and not state.ends_early:
        outcome = train_epoch(state)
        if outcome is not None:
            return outcome
        if not close_epoch(state):
            return "unsaved"
    return "ended early" if state.ends_early else "completed"


def train_epoch(state: TrainState) -> Outcome | None:
    """Train on the epoch's remaining batches; return an outcome if training ends before its end."""
    order = epoch_order(len(state.data), seed=state.spec.training.seed, epoch=state.position.epoch)
    state.model.train()
    while state.position.samples < len(order):
        outcome = train_batch(state, order)
        if outcome is not None:
            return outcome
    return None


def train_batch(state: TrainState, order: Tensor) -> Outcome | None:
    """Take one step of the optimizer; return an outcome if training ends after it."""
    start = state.phases.clock.elapsed()
    state.context.control.enter_phase(
        "training", epoch=state.position.epoch, step=state.session.steps
    )
    batch = batch_at(
        state.position.samples, num_samples=len(order), global_batch=state.session.global_batch
    )
    with state.phases("compute"):
        own_samples = accumulate_gradients(state, order, batch)
    state.own_work.end_step(own_samples, state.phases.seconds)
    with state.phases("optimize"):
        result = state.session.step()
    finish_step(state, batch, result)
    pad_step(state, start)
    return follow_signals(state, result.announced)


def accumulate_gradients(state: TrainState, order: Tensor, batch: range) -> int:
    """Leave the gradient of the batch's mean loss in the parameters, averaged over the workers;
    return the number of samples that this rank computed.
    """
    set_optimizer(state, batch)
    state.optimizer.zero_grad()
    pieces = micro_batches(batch, state.spec.training.micro_batch)
    counts = state.division.counts(len(pieces))
    mine = rank_shard(pieces, rank=state.context.rank, counts=counts)
    idle_passes = state.division.idle_passes(len(mine), counts)
    passes: list[range | None] = [*mine, *[None] * idle_passes]
    with state.no_sync():
        for piece in passes[:-1]:
            backward_pass(state, order, piece, batch=batch)
    backward_pass(state, order, passes[-1], batch=batch)
    state.session.source.exchange_gradients()  # where the backward pass does not, unlike in DDP
    clip_norm = state.held.get("clip_norm", state.spec.training.clip_norm)
    if clip_norm is not None:
        if state.scaler is not None:
            state.scaler.unscale_(state.optimizer)
        clip_grad_norm_(state.ddp.parameters(), clip_norm)
    return sum(map(len, mine)) or len(pieces[0])


def backward_pass(state: TrainState, order: Tensor, piece: range | None, *, batch: range) -> None:
    """Add the gradient of a micro-batch, or without one take part in a pass of the others."""
    if piece is not None:
        backward_micro_batch(state, order, piece, batch=batch)
    else:
        first, *_ = micro_batches(batch, state.spec.training.micro_batch)
        backward_without_samples(state, order, first)


def backward_micro_batch(state: TrainState, order: Tensor, piece: range, *, batch: range) -> None:
    """Add the gradient of one of the batch's micro-batches."""
    loss = compute_loss(state, order, piece)
    state.add_loss(loss, len(piece))
    weight = loss_weight(piece, batch, world_size=state.context.world_size)
    state.backward(loss * weight)


def backward_without_samples(state: TrainState, order: Tensor, piece: range) -> None:
    """Run a backward pass that adds zero, for a worker without samples in this batch: the other
    workers' exchange needs it.
    """
    # In evaluation mode, running statistics do not change.
    state.model.eval()
    state.backward(compute_loss(state, order, piece) * 0.0)
    state.model.train()


def compute_loss(state: TrainState, order: Tensor, piece: range) -> Tensor:
    """Mean loss of a micro-batch.

    Raises:
        TaskRaised: the task or its model raised.
    """
    state.context.control.activity_count += 1
    seed = derive_seed("sample", state.spec.training.seed, state.position.epoch, piece.start)
    device = state.context.device
    with state.task_code(), seeded_generators(seed, device):
        with state.phases("load"):
            inputs, targets = state.data.batch(order[piece.start : piece.stop])
        outputs = state.outputs(state.ddp, inputs)
        return state.task.loss(outputs, to_device(targets, device), step=state.session.steps)


def set_optimizer(state: TrainState, batch: range) -> None:
    """Give the optimizer the schedule's rate of this step, scaled to its batch, and its weight
    decay, or what overrides set in their place.
    """
    training, step, size = state.spec.training, state.session.steps, state.session.global_batch
    state.batch_change = state.scaling.after(state.batch_change, size=size, step=step)
    rate = state.schedule.step_rate(state.position.epoch, batch.stop / len(state.data))
    rate *= state.scaling.factor(state.batch_change, step)
    for group in state.optimizer.param_groups:
        group["lr"] = state.rate_in_force(rate, state.held)
        group["weight_decay"] = state.held.get("weight_decay", training.optimizer.weight_decay)


def pad_step(state: TrainState, start: float) -> None:
    """Wait until the step that began at `start` has taken the task's `min_step_s`."""
    missing = min_step_s(state.spec) - (state.phases.clock.elapsed() - start)
    if missing > 0:
        with state.phases("wait"):
            state.phases.clock.sleep(missing)


def min_step_s(spec: JobSpec) -> float:
    """Return the seconds that a step takes at least, by the task's options."""
    return float(spec.task.options.get("min_step_s", 0.0))


def close_epoch(state: TrainState) -> bool:
    """Evaluate if due, decide on the next epoch, report and save; False if a cancelled job's final
    state could not be saved.
    """
    epoch = state.position.epoch
    rates = EpochRates(
        last_step=state.rate,
        epoch=state.rate_in_force(state.schedule.epoch_rate(epoch), state.held),
        next_epoch=state.rate_in_force(state.schedule.epoch_rate(epoch + 1), state.held_next),
    )
    is_last = epoch + 1 == state.spec.training.epochs
    due = is_evaluation_due(state.spec, epoch, is_last=is_last)
    measure = partial(measure_metrics, state) if due else MetricSums
    return finish_epoch(state, measure, rates=rates, is_last=is_last)


__all__ = ["min_step_s", "train_epochs", "train_job"]
