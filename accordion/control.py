"""The control word: a few floats that ride along with the gradients and are read by all workers at
a step's end.

What any worker raises, all workers see at the same step boundary; only then is there anything to
talk about.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from accordion.wire import Flow, Mean


class Word(IntEnum):
    """What can be announced; the value is the place in the control word."""

    NOT_FINITE = 0
    """A gradient here is not finite: the step is not taken."""
    DECISION = 1
    """Rank 0 has another plan."""
    SAVE_STOP = 2
    """Save and return."""
    RESIZE = 3
    """Save and return, to come back with another number of workers."""
    CHECKPOINT = 4
    """Save and go on."""


def word_flow(word: Tensor) -> Flow:
    """Average the word: a place above zero was raised by somebody. NaN stays in its own place."""
    seen = yield Mean(word.clone())
    return seen.clone()


def raised(word: Tensor) -> frozenset[Word]:
    """What somebody announced."""
    values = word.tolist()
    return frozenset(place for place in Word if values[place] != 0.0)


def empty_word(device: torch.device) -> Tensor:
    """A word with nothing raised, fp32."""
    return torch.zeros(len(Word), dtype=torch.float32, device=device)
