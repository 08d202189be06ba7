"""Top-k: the k entries of largest magnitude of each layer, as (value, 32-bit position) pairs.

B layers of L entries, K sent of each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from accordion.wire import Context, Flow, Gather

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def topk_flow(m_BL: Tensor, context: Context) -> Flow:
    """Send the K largest of each layer; the update is the sum over the workers divided by their number."""
    dtype = _DTYPES[str(context.options["values"])]
    count = max(1, round(float(context.options["density"]) * m_BL.shape[1]))
    i_BK = m_BL.abs().topk(count, dim=1, sorted=False).indices
    limit = torch.finfo(dtype).max
    v_BK = m_BL.gather(1, i_BK).clamp(-limit, limit).to(dtype)
    payloads = yield Gather(torch.cat([_as_bytes(v_BK), _as_bytes(i_BK.to(torch.int32))]), equal=True)
    update_BL = torch.zeros_like(m_BL)
    for payload in payloads:
        values_BK, indices_BK = _unpack(payload, i_BK.shape, dtype)
        update_BL.scatter_add_(1, indices_BK, values_BK.to(m_BL.dtype).mul_(1.0 / len(payloads)))
    sent_BL = torch.zeros_like(m_BL).scatter_(1, i_BK, v_BK.to(m_BL.dtype))
    return update_BL, sent_BL


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _unpack(payload: Tensor, shape: torch.Size, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values as sent, (B, K), and positions as int64, (B, K)."""
    cut = shape.numel() * dtype.itemsize
    # A packed payload may start at any byte; a view as wider numbers needs an aligned start.
    values = payload[:cut].clone().view(dtype).view(shape)
    indices = payload[cut:].clone().view(torch.int32).view(shape)
    return values, indices.long()
