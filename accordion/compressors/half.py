"""Sixteen bits a value, averaged in sixteen bits as PyTorch's fp16 hook does."""

from __future__ import annotations

import torch
from torch import Tensor

from accordion.wire import Context, Flow, Mean

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def half_flow(m_BL: Tensor, context: Context) -> Flow:
    """Round to 16 bits; values beyond the format's range are sent as its largest."""
    dtype = _DTYPES[str(context.options["dtype"])]
    limit = torch.finfo(dtype).max
    h_BL = m_BL.clamp(-limit, limit).to(dtype)
    sent_BL = h_BL.to(m_BL.dtype)
    update_BL = yield Mean(h_BL)
    return update_BL.to(m_BL.dtype), sent_BL
