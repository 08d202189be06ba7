"""Tensors of layers: staged until the step is taken, in two buffers, and their dtype and order."""

from __future__ import annotations

import torch
from torch import Tensor


class StagedTensors:
    """Tensors by layer name that change only at `commit`."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        """Committed tensors by layer."""
        self._staged: dict[str, Tensor | None] = {}

    def get(self, layer: str) -> Tensor | None:
        """Return the layer's committed tensor; None without one."""
        return self.values.get(layer)

    def stage(self, layer: str, value: Tensor | None) -> None:
        """Stage the layer's tensor for the next commit; None removes the layer."""
        self._staged[layer] = value

    def commit(self) -> None:
        """Make the staged tensors current."""
        for layer, value in self._staged.items():
            if value is None:
                self.values.pop(layer, None)
            else:
                self.values[layer] = value
        self._staged.clear()

    def rollback(self) -> None:
        """Drop the staged tensors."""
        self._staged.clear()

    def restore(self, layer: str) -> None:
        """Replace the content of the layer's staged tensor by its committed content, as far as that
        reaches if the level has changed.
        """
        staged, committed = self._staged.get(layer), self.get(layer)
        if staged is None:
            self._staged.pop(layer, None)
        elif committed is not None:
            # The tensor stays staged: all layers of a stack swap their two buffers together.
            both = tuple(map(slice, map(min, staged.shape, committed.shape)))
            staged[both].copy_(committed[both])

    def copy_to_cpu(self) -> dict[str, Tensor]:
        """Return copies of the committed tensors on the CPU, which later steps do not change."""
        return {layer: value.to("cpu", copy=True) for layer, value in self.values.items()}


class DoubleBuffer:
    """Two buffers that are used in turn: one may be in use while the other is written."""

    def __init__(self, like: Tensor) -> None:
        self._buffers = (torch.empty_like(like), torch.empty_like(like))

    def spare(self, in_use: Tensor | None) -> Tensor:
        """Return the buffer that `in_use` is not a view of."""
        first, second = self._buffers
        is_first_used = (
            in_use is not None
            and in_use.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        )
        return second if is_first_used else first


def working_dtype(gradient: Tensor) -> torch.dtype:
    """Return the dtype of residuals and flows for a gradient."""
    return torch.float64 if gradient.dtype == torch.float64 else torch.float32


def memory_order_view(tensor: Tensor) -> Tensor:
    """Return a view with the dimensions in memory order, contiguous for every dense tensor."""
    return tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
