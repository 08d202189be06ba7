"""Layers, the buckets that DDP hands over, and the stacks of layers that share a flow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from accordion.base.messages import Level
from accordion.base.wire import Flow, LayerKind, Scratch
from accordion.compress.layer_tensors import DoubleBuffer, working_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a bucket in one step."""

    name: str
    gradient: Tensor
    """View into the bucket with the parameter's shape; the exchange changes it in place."""

    @property
    def kind(self) -> LayerKind:
        """Kind by the number of dimensions."""
        if self.gradient.dim() == 2:
            return "matrix"
        return "vector" if self.gradient.dim() < 2 else "conv"

    def copy_gradient(self, into: Tensor, *, scale: float) -> None:
        """Write `scale` times the gradient into a contiguous tensor of its size."""
        into.view(self.gradient.shape).copy_(self.gradient)
        if scale != 1.0:
            into.mul_(scale)  # after the copy: a product in 16 bits would lose small gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that DDP hands over at once."""

    buffer: Tensor
    """The gradients, flat; their averages after the exchange."""
    layers: tuple[Layer, ...]
    """Views into the buffer, one per layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Layers of equal shape and level that share one flow."""

    layers: tuple[Layer, ...]
    level: Level
    owed: Tensor
    """Gradients plus residuals, (B, N, M) for matrix methods and (B, L) for the others. The flow
    leaves the new residuals in it.
    """
    update: Tensor
    """Averaged gradients, shaped like `owed`; may be the bucket's own memory, or be shared."""
    warm: Tensor | None
    flow: Flow

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers."""
        return tuple(layer.name for layer in self.layers)


class StackBuffers:
    """Buffers that one stack reuses in every step, allocated on first use."""

    def __init__(self, shape: tuple[int, ...], gradient: Tensor) -> None:
        self.scratch = Scratch(gradient.device)
        self.warm: DoubleBuffer | None = None
        self._new = partial(
            torch.empty, shape, dtype=working_dtype(gradient), device=gradient.device
        )

    @cached_property
    def owed(self) -> Tensor:
        """Buffer for the residuals."""
        return self._new()

    @cached_property
    def old(self) -> Tensor:
        """Buffer for old residuals that the bucket cannot keep."""
        return self._new()
