"""What a flow may ask of the network, and what a flow is.

A flow is a generator without IO. It gets a stack of B layers of equal shape with their residuals already added, yields
requests, is sent their answers, and returns `(update, sent)`, both shaped like the stack:

- `update`: what the optimizer gets, the same on all workers;
- `sent`: what this worker no longer owes. Its own part for sparse methods, the shared approximation for PowerSGD.

A flow changes neither its stack nor an answer it has returned; a buffer it has yielded belongs to the network.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from accordion.messages import OptionValue


@dataclass(frozen=True, slots=True)
class Mean:
    """Asks for the mean over the workers; answered with a tensor of the same shape and dtype."""

    buffer: Tensor


@dataclass(frozen=True, slots=True)
class Gather:
    """Asks for everybody's bytes; answered with a list of W byte tensors in rank order."""

    payload: Tensor
    """uint8, one dimension."""
    equal: bool = False
    """True promises that the length is the same on all workers, which saves an exchange of sizes."""


Request = Mean | Gather
Flow = Generator[Request, Any, tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a flow may know beside its stack."""

    options: Mapping[str, OptionValue]
    warm: Tensor | None = None
    """State kept from step to step, stacked over the layers (B first); the flow changes it in place."""


def bytes_of(request: Request) -> int:
    """Bytes that one worker hands to the network for this request."""
    tensor = request.buffer if isinstance(request, Mean) else request.payload
    return tensor.numel() * tensor.element_size()
