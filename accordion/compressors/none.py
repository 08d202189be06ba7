"""No compression: the mean of the gradient as it is."""

from __future__ import annotations

from torch import Tensor

from accordion.wire import Context, Flow, Mean


def none_flow(m_BL: Tensor, context: Context) -> Flow:  # noqa: ARG001
    """Send everything."""
    update_BL = yield Mean(m_BL.clone())
    return update_BL, m_BL
