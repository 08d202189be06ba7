"""Random-k: k random entries of each layer, at equal positions on all workers (arXiv:1809.07599).

The seed is shared, so the values are averaged by all-reduce and no positions are sent. Values have
the gradient's own format: a mean in 16 bits would be rounded after the residual was computed.

B layers of L entries, K sent of each. A stack may have up to 2**31 entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from accordion.base.wire import Context, Flow, Mean
from accordion.compressors.stratified_sampling import draw_positions


def randomk_flow(owed_BL: Tensor, context: Context) -> Flow:
    """Average K entries of each layer, redrawn in each step; the others stay in the residual."""
    layers, length = owed_BL.shape
    if owed_BL.numel() == 0:
        return
    count = max(1, round(float(context.options["density"]) * length))
    drawn = draw_positions((layers, length, count), context.draw("shared"), context.shared)
    values = context.scratch.take("values", drawn.shape, owed_BL.dtype)
    torch.index_select(owed_BL.view(-1), 0, drawn, out=values)
    owed_BL.view(-1).index_fill_(0, drawn, 0.0)
    positions = context.scratch.take("positions", drawn.shape, torch.int32).copy_(drawn)
    mean = values.copy_((yield Mean(values)))
    yield None  # hold
    context.update.zero_()
    context.update.view(-1).index_add_(0, positions, mean)
