"""One worker's training loop, from top to bottom: build, resume, epochs, batches, micro-batches.

Runs in any process group: Ray's, or the one of a test.
"""

from __future__ import annotations

import logging
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from accordion.control import Word
from workers.data.nested import to_device
from workers.errors import LossNotFinite
from workers.training.checkpointing import is_due, restore, save
from workers.training.clock import Clock
from workers.training.context import WorkerContext
from workers.training.evaluation import agree, mean_loss, mean_metrics, summaries
from workers.training.reports import announce, epoch_record, mark, report_progress, report_switch
from workers.training.resume import StopRequested
from workers.training.running_statistics import average_buffers, begin_window, keep_memory
from workers.training.sampler import (
    Position,
    batch_at,
    cut,
    epoch_order,
    loss_weight,
    seed_of,
    share,
)
from workers.training.train_state import LossSum, Run, build, seeded

logger = logging.getLogger(__name__)
Outcome = Literal["completed", "stopped", "resized", "unsaved"]
"""`stopped`: a user stopped the job; `resized`: another group continues from the saved state;
`unsaved`: a user cancelled the job while its storage could not take its state.
"""

MAX_SKIPPED_IN_A_ROW = 10
"""Steps that may be skipped one after the other. One bad batch costs one step and a spike a few;
parameters do not change while steps are skipped, so when a window of other samples did not help
either, nothing will.
"""
LEAST_SCALE = 1.0
"""Of the loss in fp16. A larger one keeps small gradients from vanishing, and falls where large
ones turn infinite.
"""
FLUSH_TIMEOUT_S = 10.0
"""How long a finished worker waits for its last records to arrive; they are in the journal in any
case.
"""


def train(context: WorkerContext, clock: Clock | None = None) -> Outcome:
    """Train the job from its newest checkpoint to its end, or to a stop that was asked for and
    saved.

    Raises:
        TaskRaised: the task's own code raised.
        LossNotFinite: no step could be taken any more.
        StorageError: the storage cannot serve this job.
    """
    torch.set_num_threads(context.launch.spec.workers.num_threads)
    run = build(context, clock or Clock())
    keep_memory(run)
    try:
        resumed_from = restore(run)
    except StopRequested as stop:
        context.link.log(f"the job stops before its first step here: {stop}")
        return "stopped"
    begin_window(run)
    announce(run, resumed_from)
    context.helm.listen(run.session.request)
    outcome = train_epochs(run)
    context.helm.enter("finished", epoch=run.position.epoch, step=run.session.steps)
    context.link.flush(FLUSH_TIMEOUT_S)
    return outcome


def train_epochs(run: Run) -> Outcome:
    """The rest of the job, epoch by epoch."""
    while run.position.epoch < run.spec.training.epochs:
        outcome = train_epoch(run)
        if outcome != "completed":
            return outcome if save(run, wait=True) else "unsaved"
        if not close_epoch(run):
            return "unsaved"
    return "completed"


def train_epoch(run: Run) -> Outcome:
    """The rest of the epoch, batch by batch."""
    order = epoch_order(len(run.data), seed=run.spec.training.seed, epoch=run.position.epoch)
    run.model.train()
    while run.position.samples < len(order):
        words = train_batch(run, order)
        if Word.SAVE_STOP in words:
            return "stopped"
        if Word.RESIZE in words:
            return "resized"
        if is_due(run, words):
            save(run)
    return "completed"


def train_batch(run: Run, order: Tensor) -> frozenset[Word]:
    """One step of the optimizer; returns what was announced at its end."""
    start = run.phases.clock.elapsed()
    run.context.helm.enter("training", epoch=run.position.epoch, step=run.session.steps)
    batch = batch_at(
        run.position.samples, num_samples=len(order), global_batch=run.session.global_batch
    )
    with run.phases("compute"):
        accumulate(run, order, batch)
    with run.phases("optimize"):
        result = run.session.step()
    run.position = Position(epoch=run.position.epoch, samples=batch.stop)
    run.progress_samples += len(batch)
    if result.switch is not None:
        report_switch(run, result.switch)
    check_taken(run, taken=result.taken)
    steer(run)
    report_progress(run)
    rest(run, start)
    return result.announced


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
        take_part(run, order, pieces[0])
    if run.spec.training.clip_norm is not None:
        if run.scaler is not None:
            run.scaler.unscale_(run.optimizer)
        clip_grad_norm_(run.ddp.parameters(), run.spec.training.clip_norm)


def backward(run: Run, order: Tensor, piece: range, *, batch: range) -> None:
    """Add the gradient of a micro-batch of this batch."""
    loss = forward(run, order, piece)
    run.epoch_loss.add(loss, len(piece))
    run.recent_loss.add(loss, len(piece))
    weight = loss_weight(piece, batch, world_size=run.context.world_size)
    run.backward(loss * weight)


def take_part(run: Run, order: Tensor, piece: range) -> None:
    """A backward pass that adds nothing: the others wait for this worker, and it has no samples in
    this batch.
    """
    # in evaluation mode running statistics stay as they are.
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


def check_taken(run: Run, *, taken: bool) -> None:
    """Count steps that were skipped one after the other; the same on all ranks.

    A skip that makes the scale of the loss smaller is no failure yet: the next step is another one.

    Raises:
        LossNotFinite: there were too many.
    """
    if not taken and run.scaler is not None and run.scaler.get_scale() > LEAST_SCALE:
        return
    run.skipped_in_a_row = 0 if taken else run.skipped_in_a_row + 1
    if run.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
        raise LossNotFinite(run.session.steps - 1, run.position.epoch, run.skipped_in_a_row)


def steer(run: Run) -> None:
    """Tell this worker's process how far the loop is, and how long it computed for that."""
    helm, computed = run.context.helm, run.phases.seconds["compute"]
    helm.compute_s, run.computed_s = computed - run.computed_s, computed
    helm.step, helm.stepped_at = run.session.steps, run.phases.clock.now()


def rest(run: Run, start: float) -> None:
    """Stretch the step that began at `start` to the length that the job asks for."""
    least = float(run.spec.task.options.get("min_step_s", 0.0))
    missing = least - (run.phases.clock.elapsed() - start)
    if missing > 0:
        with run.phases("wait"):
            run.phases.clock.sleep(missing)


def close_epoch(run: Run) -> bool:
    """Evaluate, decide about the next epoch, report, save; False if a cancelled job could not be
    saved.
    """
    epoch, decision = run.position.epoch, run.session.decision
    run.context.helm.enter("epoch end", epoch=epoch, step=run.session.steps)
    with run.phases("evaluate"):
        average_buffers(run)
        parts = summaries(run)
        agree(run, parts)
    with run.phases("decide"):
        switch = run.session.end_epoch(
            lr=run.schedule.epoch_rate(epoch), next_lr=run.schedule.epoch_rate(epoch + 1)
        )
    last = epoch + 1 == run.spec.training.epochs
    if run.context.rank == 0:
        logger.info(
            "epoch %d ends after step %d; %s", epoch, run.session.steps, switch.decision.reason
        )
    loss = mean_loss(parts)
    run.context.link.post(epoch_record(run, decision, loss=loss, metrics=mean_metrics(parts)))
    if not last:
        report_switch(run, switch)
    open_epoch(run, epoch + 1)
    if last:
        report_progress(run, last=True, loss=loss)
    if last or (epoch + 1) % run.spec.checkpoint.every_epochs == 0:
        return save(run, wait=last) or not last
    return True


def open_epoch(run: Run, epoch: int) -> None:
    """Begin to count anew."""
    run.position = Position(epoch=epoch)
    run.epoch_loss = LossSum.zero(run.context.device)
    run.epoch_mark = mark(run)
    run.adviser.statistic = None


__all__ = ["MAX_SKIPPED_IN_A_ROW", "Outcome", "train", "train_epochs"]
