"""Error feedback: the law of a layer's residual, and all that computes with residuals.

The residual is what compression has left out of a layer so far; every worker has its own. Let g be
a worker's gradient, r its residual, and mean() the mean over the workers. A method with feedback
keeps

    owed = g + r                        before the exchange
    mean(owed) = update + mean(r')      after it, with the same update on all workers

- **After a step,** such a method has left r' in `owed`, which is the residual's memory from then on
  (`write_owed_`). A method without feedback sends all that is owed and leaves r' = 0; what it
  rounds off is lost (`write_whole_`, `add_to_gradients_`).
- **At a change of level,** the residual stays as it is, and the next method sends from g + r.
  Residuals are in units before loss scaling, in fp32, or fp64 for fp64 gradients.
- **On a skipped step,** r' = r on all workers (`undo_`), and likewise for a layer that no worker
  used (`restore`). Until a step's last exchange, nobody knows whether it is taken. So the bucket
  keeps r in place of g, and gets the update when the step's signals are known.
- **At a change of the number of workers,** each worker of the new group starts with the mean of the
  saved residuals, which keeps mean(r) (`sum_residuals_`, `mean_residuals_`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from accordion.base.wire import Scratch
from accordion.compress.layer_stacks import Layer, StackBuffers
from accordion.compress.layer_tensors import StagedTensors
from accordion.compressors.packing import block_size


class Feedback(StagedTensors):
    """Residuals of one worker by layer.

    They change in place; the old ones are kept elsewhere until it is known whether the step is
    taken. Only removals are staged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.keeps_old = False
        """Whether layers may be unused, so that `restore` needs their old residuals."""
        self._old: dict[str, Tensor | None] = {}
        """Residuals before this step of the layers whose residuals have changed; None for none."""

    def write_owed_(
        self,
        owed: Tensor,
        layers: Sequence[Layer],
        buffers: StackBuffers,
        *,
        loss_scale: float,
        room: Scratch,
    ) -> None:
        """Write gradients plus residuals into a stack for a method with feedback.

        The stack is the memory of the residuals from now on. Those before are kept in the bucket,
        in place of the gradients, or in `buffers.old` if they do not fit there or are needed later.
        """
        for place, layer in enumerate(layers):
            gradient = layer.gradient
            keeps_old = self.keeps_old or gradient.dtype != owed.dtype
            self._add_gradient_(
                layer,
                owed[place].view(gradient.shape),
                scale=1.0 / loss_scale,
                old=buffers.old[place].view(gradient.shape) if keeps_old else gradient,
                room=room,
            )

    def write_whole_(self, owed: Tensor, layers: Sequence[Layer], *, loss_scale: float) -> None:
        """Write gradients, with loss scaling, plus residuals into a stack for a method without
        feedback; stage the removal of the residuals.

        Such a method rounds this sum: without loss scaling, small gradients would be lost for good.
        """
        for part, layer in zip(owed, layers, strict=True):
            whole = part.view(layer.gradient.shape)
            if layer.gradient.data_ptr() != whole.data_ptr():
                whole.copy_(layer.gradient)
            self._move_residual_(layer.name, whole, scale=loss_scale)

    def add_to_gradients_(self, layers: Sequence[Layer], *, loss_scale: float) -> None:
        """Add the residuals to gradients that are sent uncompressed, and stage their removal."""
        for layer in layers:
            self._move_residual_(layer.name, layer.gradient, scale=loss_scale)

    def _move_residual_(self, layer: str, gradient: Tensor, *, scale: float) -> None:
        residual = self.get(layer)
        if residual is not None:
            gradient.add_(residual.view_as(gradient).to(gradient.device), alpha=scale)
            self.stage(layer, None)

    def _add_gradient_(
        self, layer: Layer, owed: Tensor, *, scale: float, old: Tensor, room: Scratch
    ) -> None:
        """Write `scale` times the gradient plus the residual into `owed`, of the gradient's shape,
        and the residual before into `old`, which may be the gradient.
        """
        gradient, residual = layer.gradient, self.get(layer.name)
        self.values[layer.name], self._old[layer.name] = owed, None if residual is None else old
        if residual is None:
            layer.copy_gradient(owed, scale=scale)
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


def sum_residuals_(totals: dict[str, Tensor], residuals: Mapping[str, Tensor]) -> None:
    """Add a worker's residuals to the sums of its group's; one that a worker lacks counts as zero.

    The sums of layers that have none yet are new tensors.
    """
    for layer, residual in residuals.items():
        total = totals.get(layer)
        totals[layer] = (
            residual.clone() if total is None else total.add_(residual.view_as(total).to(total))
        )


def mean_residuals_(totals: Mapping[str, Tensor], size: int) -> dict[str, Tensor]:
    """Return what each worker of another group starts with, given the sums of a group of `size`;
    they become the means in place.
    """
    return {layer: total.div_(size) for layer, total in totals.items()}
