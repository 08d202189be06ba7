"""Step signals: a few floats, averaged with the gradients, that every worker reads at a step's end.

All workers see at the same step boundary what any worker raised, and only then run further
collectives for it, such as the broadcast of a decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum

import torch
from torch import Tensor

from accordion.base.errors import HookError
from accordion.base.wire import Flow, Mean


class Signal(IntEnum):
    """Signals that a worker can raise; the value is the index in the signals' tensor."""

    NOT_FINITE = 0
    """A gradient on this worker is not finite, or too large for its format on the wire: no worker
    takes the step.
    """
    DECISION = 1
    """Rank 0 has a new plan."""
    SAVE_STOP = 2
    """Save and return."""
    RESIZE = 3
    """Save and return, to continue with another number of workers."""
    CHECKPOINT = 4
    """Save and continue."""


_LOG_SCALE, _SQUARE = len(Signal), len(Signal) + 1
"""Entries of the loss scale's logarithm and of its square: their means show whether scales differ.
"""
_LEAST_VARIANCE = 1e-3
"""Variance of the logarithm from which scales differ: rounding is below 1e-4, and one worker of 500
whose scale is halved gives 2e-3.
"""


def signal_flow(own_signals: Callable[[], Tensor]) -> Flow:
    """Average the signals, (7,): some worker raised each one whose mean is not zero.

    `own_signals` is called when the flows before it have encoded. A NaN stays in its own entry.
    """
    mean = yield Mean(own_signals())
    return mean.clone()


def raised_signals(mean: Tensor) -> frozenset[Signal]:
    """Return the signals that some worker raised, given their means; waits for the device.

    Raises:
        HookError: the workers scaled the loss by different factors; raised on all workers.
    """
    values = mean.tolist()
    if values[_SQUARE] - values[_LOG_SCALE] ** 2 > _LEAST_VARIANCE:
        raise HookError(
            "the workers scale the loss by different factors, on average by"
            f" {2.0 ** values[_LOG_SCALE]:.4g}, so the mean of their gradients is wrong; give the"
            " GradScaler the same arguments and load the same state on all workers"
        )
    return frozenset(signal for signal in Signal if values[signal] != 0.0)


def mark_nonfinite_(buffer: Tensor, signals: Tensor) -> None:
    """Write a NaN into the last bucket on all workers if some worker's gradient was not finite.

    Compression may hide such a gradient; with plain DDP every worker sees it, and a GradScaler or
    gradient clipping relies on that.
    """
    buffer[:1].masked_fill_(signals[Signal.NOT_FINITE] != 0, torch.nan)


def zero_signals(device: torch.device, *, loss_scale: float) -> Tensor:
    """Return a tensor in which no signal is raised, (7,) in fp32."""
    signals = torch.zeros(len(Signal) + 2, dtype=torch.float32, device=device)
    if loss_scale > 0.0 and loss_scale != 1.0:
        logarithm = math.log2(loss_scale)
        signals[_LOG_SCALE], signals[_SQUARE] = logarithm, logarithm**2
    return signals
