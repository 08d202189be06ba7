"""Step signals: a few floats, averaged with the gradients, that every worker reads at a step's end.

All workers see at the same step boundary what any worker raised, and only then run further
collectives for it, such as the broadcast of a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import torch
from torch import Tensor

from accordion.wire import Flow, Mean


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


def signal_flow(own_signals: Callable[[], Tensor]) -> Flow:
    """Average the signals, (5,): some worker raised each one whose mean is not zero.

    `own_signals` is called when the flows before it have encoded. A NaN stays in its own entry.
    """
    mean = yield Mean(own_signals())
    return mean.clone()


def raised_signals(mean: Tensor) -> frozenset[Signal]:
    """Return the signals that some worker raised, given their means; waits for the device."""
    values = mean.tolist()
    return frozenset(signal for signal in Signal if values[signal] != 0.0)


def zero_signals(device: torch.device) -> Tensor:
    """Return a tensor in which no signal is raised, (5,) in fp32."""
    return torch.zeros(len(Signal), dtype=torch.float32, device=device)
