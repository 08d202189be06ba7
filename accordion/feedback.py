"""Error feedback: what compression left out, kept by layer name and added to the next gradient.

A step first writes its new residuals and warm starts aside; `commit` makes them the layer's,
`rollback` forgets them. So a step that turns out not to be finite on some worker leaves no trace.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Kept:
    """Tensors by layer name that change only at `commit`."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self._next: dict[str, Tensor | None] = {}

    def get(self, layer: str) -> Tensor | None:
        """The committed value."""
        return self.values.get(layer)

    def put(self, layer: str, value: Tensor | None) -> None:
        """Set aside the value from the next commit on; None forgets the layer."""
        self._next[layer] = value

    def commit(self) -> None:
        """Make what was set aside the value."""
        for layer, value in self._next.items():
            if value is None:
                self.values.pop(layer, None)
            else:
                self.values[layer] = value
        self._next.clear()

    def rollback(self) -> None:
        """Forget what was set aside."""
        self._next.clear()

    def keep(self, layer: str) -> None:
        """Let what was set aside for a layer be what it has now."""
        new, old = self._next.get(layer), self.get(layer)
        if new is None:
            self._next.pop(layer, None)
        elif old is not None:
            # Stays aside: the layers of a stack change buffers together.
            new.copy_(old.view_as(new))

    def copies(self) -> dict[str, Tensor]:
        """Return copies of the committed values on the CPU, which later steps do not change."""
        return {layer: value.to("cpu", copy=True) for layer, value in self.values.items()}


class Feedback(Kept):
    """The residuals of one worker, in fp32 (fp64 for fp64 gradients), in the gradient's units
    before loss scaling.
    """

    def compensate_(self, layer: str, gradient: Tensor, *, scale: float = 1.0) -> None:
        """Add `scale` times the layer's residual, where there is one, to a tensor of the layer's
        size.
        """
        residual = self.get(layer)
        if residual is not None:
            gradient.add_(residual.view_as(gradient).to(gradient.device), alpha=scale)

    def settle(self, layer: str) -> None:
        """Set aside that the layer owes nothing more."""
        if self.get(layer) is not None:
            self.put(layer, None)

    def keep(self, layer: str) -> None:
        """As for all; what a layer owes that owed nothing is zero."""
        super().keep(layer)
        new = self._next.get(layer)
        if new is not None and self.get(layer) is None:
            new.zero_()


class Pair:
    """Two buffers in turn: one may hold what is in force, the other is free to be written."""

    def __init__(self, like: Tensor) -> None:
        self._buffers = (torch.empty_like(like), torch.empty_like(like))

    def free(self, in_force: Tensor | None) -> Tensor:
        """The buffer of which `in_force` is no view."""
        first, second = self._buffers
        held = (
            in_force is not None
            and in_force.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        )
        return second if held else first


def working_dtype(gradient: Tensor) -> torch.dtype:
    """The dtype in which residuals are kept and flows work."""
    return torch.float64 if gradient.dtype == torch.float64 else torch.float32


def by_memory(tensor: Tensor) -> Tensor:
    """A view with the dimensions in the order in which they lie in memory: contiguous for every
    dense tensor.
    """
    return tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
