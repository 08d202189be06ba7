"""One worker's training loop, from top to bottom: build, resume, epochs, batches, micro-batches.

Runs in any process group: Ray's, or the one of a test.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from workers.data.nested import to_device
from workers.training.boundaries import (
    FLUSH_TIMEOUT_S,
    EpochRates,
    Outcome,
    finish_epoch,
    finish_step,
    follow_signals,
    start_training,
)
from workers.training.clock import Clock
from workers.training.context import WorkerContext
from workers.training.evaluation import measure_metrics
from workers.training.resume import StopRequested
from workers.training.sampler import batch_at, cut, epoch_order, loss_weight, seed_of, share
from workers.training.train_state import Run, build, seeded


def train(context: WorkerContext, clock: Clock | None = None) -> Outcome:
    """Train the job from its newest checkpoint to its end, or until a requested stop is saved.

    Raises:
        TaskRaised: the task's own code raised.
        LossNotFinite: too many steps were skipped in a row.
        StorageError: the storage cannot serve this job.
    """
    torch.set_num_threads(context.launch.spec.workers.num_threads)
    run = build(context, clock or Clock())
    try:
        start_training(run)
    except StopRequested as stop:
        context.link.log(f"the job stops before its first step here: {stop}")
        return "stopped"
    outcome = train_epochs(run)
    context.helm.enter("finished", epoch=run.position.epoch, step=run.session.steps)
    context.link.flush(FLUSH_TIMEOUT_S)
    return outcome


def train_epochs(run: Run) -> Outcome:
    """Train the remaining epochs."""
    while run.position.epoch < run.spec.training.epochs:
        outcome = train_epoch(run)
        if outcome is not None:
            return outcome
        if not close_epoch(run):
            return "unsaved"
    return "completed"


def train_epoch(run: Run) -> Outcome | None:
    """Train on the epoch's remaining batches; return an outcome if training ends before its end."""
    order = epoch_order(len(run.data), seed=run.spec.training.seed, epoch=run.position.epoch)
    run.model.train()
    while run.position.samples < len(order):
        outcome = train_batch(run, order)
        if outcome is not None:
            return outcome
    return None


def train_batch(run: Run, order: Tensor) -> Outcome | None:
    """Take one step of the optimizer; return an outcome if training ends after it."""
    start = run.phases.clock.elapsed()
    run.context.helm.enter("training", epoch=run.position.epoch, step=run.session.steps)
    batch = batch_at(
        run.position.samples, num_samples=len(order), global_batch=run.session.global_batch
    )
    with run.phases("compute"):
        accumulate(run, order, batch)
    with run.phases("optimize"):
        result = run.session.step()
    finish_step(run, batch, result)
    pad_step(run, start)
    return follow_signals(run, result.announced)


def accumulate(run: Run, order: Tensor, batch: range) -> None:
    """Leave the gradient of the batch's mean loss in the parameters, averaged over the workers."""
    set_rate(run, batch)
    run.optimizer.zero_grad()
    pieces = cut(batch, run.spec.training.micro_batch)
    mine = share(pieces, rank=run.context.rank, world_size=run.context.world_size)
    with run.no_sync():
        for piece in mine[:-1]:
            backward(run, order, piece, batch=batch)
    if mine:
        backward(run, order, mine[-1], batch=batch)
    else:
        backward_without_samples(run, order, pieces[0])
    if run.spec.training.clip_norm is not None:
        if run.scaler is not None:
            run.scaler.unscale_(run.optimizer)
        clip_grad_norm_(run.ddp.parameters(), run.spec.training.clip_norm)


def backward(run: Run, order: Tensor, piece: range, *, batch: range) -> None:
    """Add the gradient of one of the batch's micro-batches."""
    loss = forward(run, order, piece)
    run.add_loss(loss, len(piece))
    weight = loss_weight(piece, batch, world_size=run.context.world_size)
    run.backward(loss * weight)


def backward_without_samples(run: Run, order: Tensor, piece: range) -> None:
    """Run a backward pass that adds zero, for a worker without samples in this batch: the other
    workers' exchange needs it.
    """
    # in evaluation mode, running statistics do not change.
    run.model.eval()
    run.backward(forward(run, order, piece) * 0.0)
    run.model.train()


def forward(run: Run, order: Tensor, piece: range) -> Tensor:
    """Mean loss of a micro-batch.

    Raises:
        TaskRaised: the task or its model raised.
    """
    run.context.helm.num_signs += 1
    seed = seed_of("sample", run.spec.training.seed, run.position.epoch, piece.start)
    device = run.context.device
    with run.task_code(), seeded(seed, device):
        inputs, targets = run.data.batch(order[piece.start : piece.stop])
        outputs = run.outputs(run.ddp, inputs)
        return run.task.loss(outputs, to_device(targets, device), step=run.session.steps)


def set_rate(run: Run, batch: range) -> None:
    """Give the optimizer the schedule's rate of this step, scaled to its batch."""
    step, size = run.session.steps, run.session.global_batch
    run.batch_change = run.scaling.after(run.batch_change, size=size, step=step)
    rate = run.schedule.step_rate(run.position.epoch, batch.stop / len(run.data))
    for group in run.optimizer.param_groups:
        group["lr"] = rate * run.scaling.factor(run.batch_change, step)


def pad_step(run: Run, start: float) -> None:
    """Wait until the step that began at `start` has taken the task's `min_step_s`."""
    least = float(run.spec.task.options.get("min_step_s", 0.0))
    missing = least - (run.phases.clock.elapsed() - start)
    if missing > 0:
        with run.phases("wait"):
            run.phases.clock.sleep(missing)


def close_epoch(run: Run) -> bool:
    """Evaluate, decide on the next epoch, report and save; False if a cancelled job's final state
    could not be saved.
    """
    epoch = run.position.epoch
    rates = EpochRates(
        last_step=float(run.optimizer.param_groups[0]["lr"]),
        epoch=run.schedule.epoch_rate(epoch),
        next_epoch=run.schedule.epoch_rate(epoch + 1),
    )
    is_last = epoch + 1 == run.spec.training.epochs
    return finish_epoch(run, lambda: measure_metrics(run), rates=rates, is_last=is_last)


__all__ = ["train", "train_epochs"]
