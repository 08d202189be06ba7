"""Running statistics of a model, such as BatchNorm's: local to each worker until they are averaged.

They are the one exception to "the number of workers does not change the mathematics". BatchNorm
normalises each micro-batch by itself, but its running mean and variance, which only evaluation
uses, are averages over the micro-batches of *one worker*. `adjust_batchnorm_momentum` keeps their
memory as long as with one worker, and `average_buffers` makes them equal; only the order of the
micro-batches within a step remains different.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from accordion.base.wire import Mean
from accordion.compress.ledger import OVERHEAD
from accordion_workers.training.train_state import TrainState


def adjust_batchnorm_momentum(state: TrainState) -> None:
    """Adjust BatchNorm's momentum to the world size; once, before training.

    A worker sees every W-th micro-batch only, so with the model's own momentum m its running
    statistics would remember W times as long, and lag behind changing parameters: 1 - (1 - m)^W
    forgets in one micro-batch what m forgets in W.
    """
    for module in state.model.modules():
        if (
            isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
            and module.momentum is not None
        ):
            module.momentum = 1.0 - (1.0 - module.momentum) ** state.context.world_size


def mark_buffers_equal(state: TrainState) -> None:
    """Record that the buffers of all workers are equal now, such as after reading a checkpoint."""
    state.samples_at_averaging = state.epoch_loss.samples


def average_buffers(state: TrainState) -> None:
    """Make the buffers equal on all workers, before evaluation and checkpoint; all ranks together.

    Each buffer becomes its mean over the workers, weighted by the samples that each worker has
    trained on since the last average; integers, such as the count of batches, are rounded. It takes
    one all-reduce in float64, which the ledger counts as overhead, and none for a model without
    floating buffers. Buffers that no checkpoint holds do not change: they are constants, such as
    masks.
    """
    buffers = _saved_buffers(state.model)
    if state.context.world_size == 1 or not any(buffer.is_floating_point() for buffer in buffers):
        return
    samples = state.epoch_loss.samples - state.samples_at_averaging
    mark_buffers_equal(state)
    means = _weighted_means(state, buffers, samples)
    for buffer, mean in zip(buffers, means, strict=True):
        buffer.copy_(mean if buffer.is_floating_point() else mean.round())


def _saved_buffers(model: nn.Module) -> list[Tensor]:
    saved = model.state_dict().keys()
    return [
        buffer
        for name, buffer in model.named_buffers()
        if name in saved and not buffer.is_complex()
    ]


def _weighted_means(state: TrainState, buffers: Sequence[Tensor], samples: int) -> list[Tensor]:
    """Return float64 means shaped like the buffers, or the buffers' own values if no worker has any
    samples.
    """
    values = torch.cat([buffer.detach().double().flatten() for buffer in buffers])
    # Not values * 0, which is NaN for infinite values, such as those of masks.
    weighted = values * samples if samples else torch.zeros_like(values)
    summed = torch.cat([weighted, weighted.new_tensor([samples])])
    state.context.peers.sum_(summed)
    state.session.ledger.count((OVERHEAD,), Mean(summed), OVERHEAD)
    means = summed[:-1] / summed[-1] if summed[-1] else values
    parts = torch.split(means, [buffer.numel() for buffer in buffers])
    return [part.view_as(buffer) for part, buffer in zip(parts, buffers, strict=True)]


__all__ = ["adjust_batchnorm_momentum", "average_buffers", "mark_buffers_equal"]
