"""QSGD: 2 to 8 bits per value by stochastic rounding, with one norm per bucket of values
(arXiv:1610.02132).

    code = floor(value·levels / norm + u)     u uniform in (0, 1)     levels = 2**(bits - 1) - 1
    update = mean over the workers of code·norm / levels

The expectation over u is the value itself, so no residual is kept. The norm is the largest
magnitude of the bucket, an alternative to the L2 norm in the paper: the rounding error is
proportional to the norm, and the L2 norm of 512 Gaussian values is seven times their largest.

B layers of L values, the last bucket of a layer shorter; K buckets of D values, in views (B, K, D).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from accordion.base.devices import copy_to_device
from accordion.base.wire import Context, Flow, Gather
from accordion.compressors.packing import (
    block_size,
    pack_codes_,
    packed_bytes,
    split_blocks,
    unpack_codes,
)

_NORM_BYTES = 4
_LEAST_NORM = 2.0**-100
"""Smallest norm, so that levels / norm stays finite; buckets of zeros stay zero."""
_TILE = 1 << 15
"""Random numbers per step, a multiple of 16; half of them are drawn, the others are 1 minus those.

A block of values uses them repeatedly, starting at a random index. The rounding of each value is
unbiased. Values _TILE apart in a block share a number, and those half of it apart have opposite
ones, so the deviation of the numbers' mean cancels and the error of a layer's sum is as small as
with one number per value. Drawing one number per value would take longer than all other work.
"""
_NOISE_BITS = 15
"""Random bits per number. One more draw shifts all numbers of a step by less than 2**-15, so that
values below that fraction of a level are rounded without bias.
"""


def qsgd_flow(owed_BL: Tensor, context: Context) -> Flow:
    """Send `bits` bits per value and an fp32 norm per bucket."""
    bits, bucket = int(context.options["bits"]), int(context.options["bucket"])
    count, norms = owed_BL.numel(), len(owed_BL) * -(-owed_BL.shape[1] // bucket)
    packed_size = count if bits == 8 else packed_bytes(count, bits)
    payload = context.scratch.take("payload", (_NORM_BYTES * norms + packed_size,), torch.uint8)
    norm, packed = _split_payload(payload, norms)
    codes = (
        packed if bits == 8 else context.shared.take("codes", (-(-count // 8) * 8,), torch.uint8)
    )
    codes[count:].zero_()
    _write_codes(_split_buckets(owed_BL, codes, norm, bucket=bucket), _count_levels(bits), context)
    if bits < 8:
        pack_codes_(codes, packed, context.shared, bits=bits)
    payloads = yield Gather(payload, equal=True)
    step = context.shared.take("step", norm.shape)
    for place, sent in enumerate(payloads):
        norm, packed = _split_payload(sent, norms)
        if bits < 8:
            unpack_codes(packed, codes, context.shared, bits=bits)
        torch.mul(norm, 1.0 / (_count_levels(bits) * len(payloads)), out=step)
        parts = _split_buckets(context.update, packed if bits == 8 else codes, step, bucket=bucket)
        _add_decoded(parts, _code_offset(_count_levels(bits)), context, first=place == 0)


Part = tuple[Tensor, ...]
"""Values, codes in int8, and norms or steps of the buckets: (B, K, D), (B, K, D), (B, K, 1)."""


def _split_payload(payload: Tensor, norms: int) -> tuple[Tensor, Tensor]:
    cut = _NORM_BYTES * norms
    return payload[:cut].view(torch.float32), payload[cut:]


def _count_levels(bits: int) -> int:
    """Return the number of levels from zero to the norm."""
    return (1 << (bits - 1)) - 1


def _code_offset(levels: int) -> int:
    """Return the offset of packed codes, which makes them non-negative."""
    return levels if levels < _count_levels(8) else 0


def _split_buckets(
    values_BL: Tensor, codes: Tensor, norm: Tensor, *, bucket: int
) -> Iterator[Part]:
    """Yield blocks of buckets: those of full size, then the shorter last ones of all layers."""
    layers, length = values_BL.shape
    codes_BL = codes[: values_BL.numel()].view(torch.int8).view(layers, length)
    whole = length // bucket
    cut, place = whole * bucket, layers * whole
    for columns, width, norms in (
        (slice(0, cut), bucket, norm[:place]),
        (slice(cut, length), length - cut, norm[place:]),
    ):
        if norms.numel():
            values_BKD = values_BL[:, columns].view(layers, -1, width)
            codes_BKD = codes_BL[:, columns].view(layers, -1, width)
            at_once = max(1, block_size(norm.device) // width)
            yield from split_blocks(at_once, values_BKD, codes_BKD, norms.view(layers, -1, 1))


def _write_codes(parts: Iterator[Part], levels: int, context: Context) -> None:
    """Write the codes and the norms."""
    noise, starts = _draw_noise(context, _code_offset(levels))
    for values_BKD, codes_BKD, norm_BK1 in parts:
        scaled_BKD = context.shared.take("values", values_BKD.shape, values_BKD.dtype)
        norm_BK1.copy_(torch.abs(values_BKD, out=scaled_BKD).amax(2, keepdim=True)).clamp_(
            min=_LEAST_NORM
        )
        start = next(starts)
        u_BKD = noise[start : start + scaled_BKD.numel()].view(scaled_BKD.shape)
        torch.addcmul(u_BKD, values_BKD, levels / norm_BK1.to(values_BKD.dtype), out=scaled_BKD)
        # Noise close to 1 and the product's rounding could exceed the largest code of 8 bits.
        codes_BKD.copy_(scaled_BKD.floor_().clamp_(max=levels + _code_offset(levels)))


def _draw_noise(context: Context, lift: int) -> tuple[Tensor, Iterator[int]]:
    """Return uniform numbers in (0, 1) plus `lift`, and random indices to start at.

    There are enough numbers for a block from every start.
    """
    draw, update = context.draw("own"), context.update
    size = min(_TILE, max(16, -(-update.numel() // 16) * 16))
    words = torch.empty(size // 8, dtype=torch.int64, device="cpu").random_(
        -(1 << 63), None, generator=draw
    )
    drawn = words.view(torch.int16).bitwise_right_shift_(16 - _NOISE_BITS)
    drawn = copy_to_device(drawn, update.device)
    longest = min(block_size(update.device), update.numel())
    noise = context.shared.take("noise", (size + longest,), update.dtype)
    offset = float(torch.rand((), generator=draw, dtype=torch.float64, device="cpu")) - 0.5
    noise[: size // 2].copy_(drawn).add_(offset)
    noise[size // 2 : size].copy_(drawn.bitwise_not_()).sub_(offset)
    noise[:size].add_(0.5).mul_(0.5**_NOISE_BITS).add_(0.5 + lift)
    filled = size
    while filled < len(noise):  # a few long copies: on a GPU each call costs as much as a block
        noise[filled : 2 * filled].copy_(noise[: min(filled, len(noise) - filled)])
        filled *= 2
    return noise, _random_starts(size, draw)


def _random_starts(size: int, draw: torch.Generator) -> Iterator[int]:
    while True:
        yield from (
            torch.randint(0, size // 16, (256,), generator=draw, dtype=torch.int64, device="cpu")
            .mul_(16)
            .tolist()
        )


def _add_decoded(parts: Iterator[Part], lift: int, context: Context, *, first: bool) -> None:
    """Add one worker's decoded values to the update; the first worker's replace its content."""
    for update_BKD, codes_BKD, step_BK1 in parts:
        decoded_BKD = context.shared.take("values", update_BKD.shape, update_BKD.dtype).copy_(
            codes_BKD
        )
        if lift:
            decoded_BKD.sub_(lift)
        if first:
            torch.mul(decoded_BKD, step_BK1, out=update_BKD)
        else:
            update_BKD.addcmul_(decoded_BKD, step_BK1.to(decoded_BKD.dtype))
