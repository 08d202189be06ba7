"""16 bits per value, averaged in 16 bits like PyTorch's fp16 hook."""

from __future__ import annotations

import torch
from torch import Tensor

from accordion.wire import Context, Flow, Mean

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def half_flow(owed_BL: Tensor, context: Context) -> Flow:
    """Round values to 16 bits and clamp them to the format's range."""
    dtype = _DTYPES[str(context.options["dtype"])]
    limit = torch.finfo(dtype).max
    half_BL = context.scratch.take("half", owed_BL.shape, dtype)
    half_BL.copy_(owed_BL.clamp_(-limit, limit))
    mean_BL = yield Mean(half_BL)
    context.update.copy_(mean_BL)
