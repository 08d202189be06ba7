"""No compression: the mean of the gradient as it is."""

from __future__ import annotations

from torch import Tensor

from accordion.base.wire import Context, Flow, Mean


def none_flow(owed_BL: Tensor, context: Context) -> Flow:
    """Average the gradients uncompressed."""
    mean_BL = yield Mean(owed_BL)
    context.update.copy_(mean_BL)
