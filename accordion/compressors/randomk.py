"""Random-k: k entries of each layer at positions that all workers draw alike (arXiv:1809.07599).

The seed is shared, so the values can be averaged where they are and no position travels. Values
travel in the gradient's own format: a mean in 16 bits would round after the last place where a
residual could see it.

B layers of L entries, K sent of each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from accordion.compressors.stratified_sampling import draw_positions
from accordion.wire import Context, Flow, Mean


def randomk_flow(owed_BL: Tensor, context: Context) -> Flow:
    """Average K entries of each layer, drawn anew each step; an entry is owed until it is drawn."""
    layers, length = owed_BL.shape
    if owed_BL.numel() == 0:
        return
    count = max(1, round(float(context.options["density"]) * length))
    positions = draw_positions((layers, length, count), context.draw("shared"), context.scratch)
    values = context.scratch.take("values", positions.shape, owed_BL.dtype)
    torch.index_select(owed_BL.view(-1), 0, positions, out=values)
    owed_BL.view(-1).index_fill_(0, positions, 0.0)
    mean = yield Mean(values)
    context.update.zero_()
    context.update.view(-1).index_add_(0, positions, mean)
