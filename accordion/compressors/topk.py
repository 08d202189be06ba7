"""Top-k: the k entries of largest magnitude of each layer, as (value, 32-bit position) pairs.

B layers of L entries, K sent of each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from accordion.wire import Context, Flow, Gather, as_bytes

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def topk_flow(owed_BL: Tensor, context: Context) -> Flow:
    """Send the K largest of each layer; the update is the sum over the workers divided by their number."""
    dtype = _DTYPES[str(context.options["values"])]
    count = max(1, round(float(context.options["density"]) * owed_BL.shape[1]))
    i_BK = owed_BL.abs().topk(count, dim=1, sorted=False).indices
    limit = torch.finfo(dtype).max
    v_BK = owed_BL.gather(1, i_BK).clamp(-limit, limit).to(dtype)
    owed_BL.scatter_add_(1, i_BK, -v_BK.to(owed_BL.dtype))
    payloads = yield Gather(torch.cat([as_bytes(i_BK.to(torch.int32)), as_bytes(v_BK)]), equal=True)
    context.update.zero_()
    for payload in payloads:
        cut = 4 * i_BK.numel()
        indices_BK = payload[:cut].view(torch.int32).view(i_BK.shape).long()
        values_BK = payload[cut:].view(dtype).view(i_BK.shape).to(owed_BL.dtype)
        context.update.scatter_add_(1, indices_BK, values_BK.mul_(1.0 / len(payloads)))
