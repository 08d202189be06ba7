"""SignSGD with error feedback: the sign of every value and one scale per layer
(arXiv:1802.04434, arXiv:1901.09847).

    update = mean over the workers of scale·sign(owed)      scale = mean of |owed| over the layer
    owed' = owed - scale·sign(owed)

B layers of L values, Y = ceil(L / 8) bytes of signs per layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from accordion.base.wire import Context, Flow, Gather
from accordion.compressors.packing import block_size, pack_signs, split_blocks, unpack_signs

_SCALE_BYTES = 4


def signsgd_flow(owed_BL: Tensor, context: Context) -> Flow:
    """Send one bit per value and an fp32 scale per layer.

    The sign of a value is its sign bit, also for zero. The scale of an all-zero layer is 0.
    """
    layers, length = owed_BL.shape
    packed_bytes = -(-length // 8)
    payload = context.scratch.take(
        "payload", (layers * (_SCALE_BYTES + packed_bytes),), torch.uint8
    )
    scale_B1, packed_BY = _split_payload(payload, layers, packed_bytes)
    sums_B1 = _pack_signs(owed_BL, packed_BY, context)
    scale_B1.copy_(sums_B1.div_(max(length, 1)))
    context.check_finite(scale_B1.amax())
    _take_off(owed_BL, scale_B1.to(owed_BL.dtype), context)
    payloads = context.scratch.keep((yield Gather(payload, equal=True)))
    yield None  # hold
    for place, sent in enumerate(payloads):
        scale_B1, packed_BY = _split_payload(sent, layers, packed_bytes)
        _add_decoded(
            packed_BY, scale_B1.to(owed_BL.dtype) / len(payloads), context, first=place == 0
        )


def _split_payload(payload: Tensor, layers: int, packed_bytes: int) -> tuple[Tensor, Tensor]:
    cut = _SCALE_BYTES * layers
    return payload[:cut].view(torch.float32).view(layers, 1), payload[cut:].view(
        layers, packed_bytes
    )


def _pack_signs(owed_BL: Tensor, packed_BY: Tensor, context: Context) -> Tensor:
    """Write the signs and return the sums of the magnitudes, (B, 1) in fp64, in one pass."""
    sums_B1 = torch.zeros(len(owed_BL), 1, dtype=torch.float64, device=owed_BL.device)
    wide_BL = sums_B1.expand(owed_BL.shape)
    for part_BL, part_BY, part_sums_BL in split_blocks(
        block_size(owed_BL.device), owed_BL, packed_BY, wide_BL
    ):
        magnitude_BL = torch.abs(
            part_BL, out=context.shared.take("values", part_BL.shape, owed_BL.dtype)
        )
        part_sums_BL[:, :1] += magnitude_BL.sum(1, keepdim=True)
        pack_signs(part_BL, part_BY, context.shared)
    return sums_B1


def _take_off(owed_BL: Tensor, scale_B1: Tensor, context: Context) -> None:
    """Subtract the sent values from `owed`."""
    for part_BL, scale_BL in split_blocks(
        block_size(owed_BL.device), owed_BL, scale_B1.expand(owed_BL.shape)
    ):
        sent_BL = context.shared.take("values", part_BL.shape, owed_BL.dtype)
        part_BL.sub_(torch.copysign(scale_BL, part_BL, out=sent_BL))


def _add_decoded(packed_BY: Tensor, scale_B1: Tensor, context: Context, *, first: bool) -> None:
    """Add one worker's scaled signs to the update; the first worker's replace its content."""
    wide_BL = scale_B1.expand(context.update.shape)
    for part_BL, part_BY, scale_BL in split_blocks(
        block_size(scale_B1.device), context.update, packed_BY, wide_BL
    ):
        rows, columns = part_BL.shape
        into_update = first and columns % 8 == 0
        room_BL = (
            part_BL
            if into_update
            else context.shared.take("values", (rows, 8 * part_BY.shape[1]), part_BL.dtype)
        )
        signs_BL = unpack_signs(part_BY, room_BL, context.shared)[:, :columns]
        if first:
            torch.mul(signs_BL, scale_BL, out=part_BL)
        else:
            part_BL.addcmul_(signs_BL, scale_BL)
