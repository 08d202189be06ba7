"""Interface of compression flows: the requests to the network, their inputs and their results.

A flow is a generator without IO: `flow(owed, context)`. `owed` is a stack of B layers of equal
shape, each the gradient plus its residual. The flow yields requests and is sent their answers. When
it ends, it has written

- the new residual of this worker into `owed`, by the law in `accordion/compress/feedback.py` (a
  method without feedback may leave anything there);
- the averaged gradient into `context.update`, the same on all workers.

A method with feedback holds by `yield None` between the two. For one without, `owed` and
`context.update` may share memory. The network owns a buffer that was yielded; the flow may change
an answer, which is valid until the flow holds or ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from accordion.base.messages import OptionValue

_ALIGNMENT = 8
"""Payloads are padded to a multiple of this many bytes; an answer can be viewed as any dtype."""


@dataclass(frozen=True, slots=True)
class Mean:
    """Request for the mean over the workers; the answer has the same shape and dtype."""

    buffer: Tensor
    next_values: int = 0
    """Number of values of the mean that the flow requests next; 0 if it requests none next.

    Its receives are then posted while this mean is under way, which saves a trip over the link. It
    is the same on all workers, and the next mean has exactly this size and the dtype of this one.
    """

    @property
    def payload_bytes(self) -> int:
        """Bytes that this worker passes to the network."""
        return self.buffer.numel() * self.buffer.element_size()


@dataclass(frozen=True, slots=True)
class Gather:
    """Request for the bytes of all workers; the answer is a list of W tensors in rank order.

    Each is a uint8 tensor whose memory is aligned to 8 bytes.
    """

    payload: Tensor
    """uint8, one dimension."""
    equal: bool = False
    """Whether the length is the same on all workers, which saves an exchange of sizes."""

    @property
    def payload_bytes(self) -> int:
        """Bytes that this worker passes to the network."""
        return padded_size(self.payload.numel())


@dataclass(frozen=True, slots=True)
class Scatter:
    """Request to send each worker a part; the answer is a list of the W parts that the workers sent
    to this one, in rank order.

    Each is a uint8 tensor whose memory is aligned to 8 bytes.
    """

    parts: Sequence[Tensor]
    """Part for each rank: uint8, one dimension, all of a length that is the same on all workers."""

    @property
    def payload_bytes(self) -> int:
        """Bytes that this worker passes to the network."""
        return sum(padded_size(part.numel()) for part in self.parts)


Request = Mean | Gather | Scatter
LayerKind = Literal["vector", "matrix", "conv"]
Flow = Generator[Request | None, Any, Any]
"""Generator of requests; None holds the flow until all workers know whether the step is taken."""


class Scratch:
    """Buffers by name that keep their memory from step to step; their content is undefined."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a contiguous tensor; each name and dtype has one buffer, which grows on demand."""
        size = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            room = size if buffer is None else size + size // 4
            buffer = self._buffers[name, dtype] = torch.empty(
                room, dtype=dtype, device=self._device
            )
        return buffer[:size].view(shape)

    def keep(self, payloads: Sequence[Tensor]) -> list[Tensor]:
        """Return copies of the answer to a `Gather` that outlast its exchange."""
        rooms = [padded_size(payload.numel()) for payload in payloads]
        parts = torch.split(self.take("kept", (sum(rooms),), torch.uint8), rooms)
        return [
            part[: payload.numel()].copy_(payload)
            for part, payload in zip(parts, payloads, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Inputs of a flow in addition to its stack."""

    options: Mapping[str, OptionValue]
    update: Tensor
    """Output: the averaged gradients for the optimizer, shaped like the stack. With feedback, it is
    not touched before the flow has held.
    """
    scratch: Scratch
    """Buffers of this stack, for what outlasts a request."""
    shared: Scratch
    """Buffers of all stacks, for what does not: other flows overwrite them during a request."""
    step: int
    """Number of steps taken before this one, the same on all workers."""
    world_size: int
    """Number of workers."""
    rank: int
    """Number of this worker among them, from 0."""
    draw: Callable[[str], torch.Generator]
    """Returns a CPU generator with a new seed in each step.

    `draw("shared")` has the same seed on all workers, `draw("own")` another on each.
    """
    check_finite: Callable[[Tensor], None] = field(default=lambda _: None)
    """Skips the step on all workers if a scalar is not finite; called before the first yield."""
    kind: LayerKind = "matrix"
    """Kind of the stack's layers, by their number of dimensions."""
    gradient: Tensor | None = None
    """Raw gradient without loss scaling, shaped like the stack, for methods with `raw_gradient`;
    read it before the first yield.
    """
    warm: Tensor | None = None
    """State kept from step to step, stacked over the layers (B first), changed in place."""


def padded_size(size: int) -> int:
    """Return the size of a payload, in bytes, after padding."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def as_bytes(tensor: Tensor) -> Tensor:
    """Return a flat uint8 view of a contiguous tensor's memory."""
    return tensor.view(-1).view(torch.uint8)
