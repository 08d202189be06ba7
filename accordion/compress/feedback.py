"""Error feedback: keeps what compression leaves out of a layer and adds it to the next gradient.

A step stages its new warm starts; `commit` makes them current and `rollback` drops them. Residuals
change in place, and are restored in a step that is skipped because some worker's gradient is not
finite. Such a step therefore changes nothing.
When the number of workers changes, `MeanState` in `saved_states.py` averages the residuals.
"""

from __future__ import annotations

import torch
from torch import Tensor

from accordion.base.wire import Scratch
from accordion.compressors.packing import block_size


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


class Feedback(StagedTensors):
    """Residuals of one worker by layer, in units before loss scaling.

    They are kept in fp32, and in fp64 for fp64 gradients, and change in place; the old ones are
    kept elsewhere until it is known whether the step is taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self._old: dict[str, Tensor | None] = {}
        """Residuals before this step of the layers whose residuals have changed; None for none."""

    def compensate_(self, layer: str, gradient: Tensor, *, scale: float = 1.0) -> None:
        """Add `scale` times the layer's residual, if it has one, to a tensor of its size."""
        residual = self.get(layer)
        if residual is not None:
            gradient.add_(residual.view_as(gradient).to(gradient.device), alpha=scale)

    def stage_clear(self, layer: str) -> None:
        """Stage the removal of the layer's residual."""
        if self.get(layer) is not None:
            self.stage(layer, None)

    def add_gradient_(
        self,
        layer: str,
        gradient: Tensor,
        owed: Tensor,
        *,
        scale: float,
        old: Tensor,
        room: Scratch,
    ) -> None:
        """Write `scale` times the gradient plus the residual into `owed`, of the gradient's shape,
        which is the memory of the residual from now on.

        The residual before is kept in `old`, which may be the gradient.
        """
        residual = self.get(layer)
        self.values[layer], self._old[layer] = owed, None if residual is None else old
        if residual is None:
            owed.copy_(gradient)
            if scale != 1.0:
                owed.mul_(scale)  # after the copy: a product in 16 bits would lose small gradients
            return
        if residual.data_ptr() != owed.data_ptr():
            owed.copy_(residual.view_as(owed))
        tensors = [owed, gradient, old]
        if gradient.is_contiguous():
            tensors = [tensor.view(-1) for tensor in tensors]  # so that a long row is cut, too
        rows = max(1, block_size(owed.device) * len(tensors[0]) // max(1, owed.numel()))
        parts = [torch.split(tensor, rows) for tensor in tensors]
        for owed_part, new, old_part in zip(*parts, strict=True):
            before = room.take("residual", owed_part.shape, owed.dtype).copy_(owed_part)
            owed_part.add_(new, alpha=scale)
            old_part.copy_(before)

    def undo_(self, layer: str, *, when: Tensor) -> None:
        """Restore the layer's residual before this step if `when` is true, without waiting for it.

        A layer that had none gets zeros.
        """
        if layer not in self._old:
            return
        residual, old = self.values[layer], self._old[layer]
        if old is None:
            residual.masked_fill_(when, 0.0)
        else:
            torch.where(when, old, residual.view_as(old), out=residual.view_as(old))

    def restore(self, layer: str) -> None:
        """Restore the layer's residual before this step, or zeros without one."""
        self._staged.pop(layer, None)
        if (residual := self.get(layer)) is not None:
            self.undo_(layer, when=residual.new_ones((), dtype=torch.bool))

    def commit(self) -> None:
        """Make the residuals current."""
        super().commit()
        self._old.clear()

    def rollback(self) -> None:
        """Drop what is staged; residuals that changed were restored by `undo_`."""
        super().rollback()
        self._old.clear()


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
