"""What a flow may ask of the network, what it is given, and what it has to leave behind.

A flow is a generator without IO: `flow(owed, context)`. `owed` is a stack of B layers of equal
shape, each the gradient plus what its layer owed before. The flow yields requests, is sent their
answers, and at its end has

- written into `context.update` what the optimizer gets, the same on all workers;
- left in `owed` what this worker still owes (a method without feedback leaves whatever it likes).

So the mean over the workers of `owed` before is the update plus the mean of `owed` after. A method
without feedback may find `owed` and `context.update` to be the same memory. A buffer that was
yielded belongs to the network; an answer may be changed and lives until the flow ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from accordion.messages import OptionValue

_ALIGNMENT = 8
"""Payloads are padded_size to this many bytes on their way, so that an answer can be viewed as any
dtype.
"""


@dataclass(frozen=True, slots=True)
class Mean:
    """Asks for the mean over the workers; answered with a tensor of the same shape and dtype."""

    buffer: Tensor


@dataclass(frozen=True, slots=True)
class Gather:
    """Asks for everybody's bytes; answered with a list of W byte tensors in rank order, each
    starting aligned.
    """

    payload: Tensor
    """uint8, one dimension."""
    equal: bool = False
    """True promises that the length is the same on all workers, which saves an exchange of sizes.
    """


Request = Mean | Gather
LayerKind = Literal["vector", "matrix", "conv"]
Flow = Generator[Request, Any, Any]


class Scratch:
    """Buffers by name that keep their memory from step to step; what is in them when they are taken
    is undefined.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """A contiguous tensor; the same memory for the same name and dtype as long as it is large
        enough.
        """
        size = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            room = size if buffer is None else size + size // 4
            buffer = self._buffers[name, dtype] = torch.empty(
                room, dtype=dtype, device=self._device
            )
        return buffer[:size].view(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a flow is given beside its stack."""

    options: Mapping[str, OptionValue]
    update: Tensor
    """To be written: what the optimizer gets, shaped like the stack."""
    scratch: Scratch
    """Memory of this stack."""
    step: int
    """Steps taken before this one; the same on all workers."""
    draw: Callable[[str], torch.Generator]
    """`draw("shared")` is seeded the same on all workers, `draw("own")` differs; both anew each
    step, on the CPU.
    """
    kind: LayerKind = "matrix"
    """Of the layers in the stack, told by their number of dimensions."""
    gradient: Tensor | None = None
    """For rows that ask for it: the raw gradient before loss scaling, shaped like the stack.

    It lies in the memory of `update`: read it before the first yield, write `update` only after.
    """
    warm: Tensor | None = None
    """State kept from step to step, stacked over the layers (B first); the flow changes it in
    place.
    """


def payload_bytes(request: Request) -> int:
    """Bytes that one worker hands to the network for this request."""
    tensor = request.buffer if isinstance(request, Mean) else request.payload
    size = tensor.numel() * tensor.element_size()
    return size if isinstance(request, Mean) else padded_size(size)


def padded_size(size: int) -> int:
    """Bytes that a payload of this size takes on its way."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def as_bytes(tensor: Tensor) -> Tensor:
    """A contiguous tensor's memory as a flat uint8 view."""
    return tensor.view(-1).view(torch.uint8)
