"""QSGD: 2 to 8 bits per value by stochastic rounding, with one norm per bucket of values
(arXiv:1610.02132).

    code = floor(value·levels / norm + u)     u uniform in (0, 1)     levels = 2**(bits - 1) - 1
    update = mean over the workers of code·norm / levels

The expectation over u is the value itself, so no residual is kept. The norm is the largest
magnitude of the bucket, an alternative to the L2 norm in the paper: the rounding error is
proportional to the norm, and the L2 norm of 512 Gaussian values is seven times their largest.

From three workers on, large layers are scattered: each worker gets the codes of one part of the
layer from all, and sends all the codes of the part's mean. A worker then sends 2(W - 1)/W times its
codes, and not W - 1 times. The mean is rounded once more, again without bias. With s a worker's
norm / levels and S that of the mean, one rounding has a variance of s²/6 on average (at most s²/4),
so the update's is s²/(6W) + S²/6 in place of s²/(6W): twice as large if the workers' gradients are
independent (S² = s²/W), and 1 + W times if they are equal, which is at most (1 + 1/W) times that of
a single worker's codes.

B layers of L values, the last bucket of a layer shorter; K buckets of D values, in views (B, K, D).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from accordion.base.devices import copy_to_device
from accordion.base.wire import Context, Flow, Gather, Scatter, padded_size
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
_WORTH_BYTES = 1 << 11
"""Bytes that scattering a layer has to save each worker on the wire. At 100 Mbit/s they take about
as long as the calls for a second set of codes.
"""


def qsgd_flow(owed_BL: Tensor, context: Context) -> Flow:
    """Send `bits` bits per value and an fp32 norm per bucket."""
    coder = _Coder(
        bits=int(context.options["bits"]),
        bucket=int(context.options["bucket"]),
        context=context,
        draw=context.draw("own"),
    )
    layers, length = owed_BL.shape
    columns = -(-length // (8 * context.world_size)) * 8
    whole, part = coder.payload_size(layers, length), coder.payload_size(layers, columns)
    if (context.world_size - 1) * (whole - 2 * part) < _WORTH_BYTES:
        payload = context.scratch.take("payload", (whole,), torch.uint8)
        coder.encode([owed_BL], [payload])
        coder.write_mean((yield Gather(payload, equal=True)), context.update)
        return
    parts, updates = (
        [stack[:, place * columns : (place + 1) * columns] for place in range(context.world_size)]
        for stack in (owed_BL, context.update)
    )
    room = context.scratch.take("payload", (len(parts), padded_size(part)), torch.uint8)
    payloads = list(room[:, :part])
    coder.encode(parts, payloads)
    coder.write_mean((yield Scatter(payloads)), updates[context.rank])
    payload = context.scratch.take("mean", (part,), torch.uint8)
    coder.encode([updates[context.rank]], [payload])
    for update, mean in zip(updates, (yield Gather(payload, equal=True)), strict=True):
        coder.write_mean([mean], update)


Part = tuple[Tensor, ...]
"""Values, codes in int8, and norms or steps of the buckets: (B, K, D), (B, K, D), (B, K, 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coder:
    """Encodes and decodes the stacks of a flow, which have B layers and any number of columns."""

    bits: int
    bucket: int
    context: Context
    draw: torch.Generator
    """Source of this worker's noise."""

    @property
    def levels(self) -> int:
        """Number of levels from zero to the norm."""
        return (1 << (self.bits - 1)) - 1

    @property
    def offset(self) -> int:
        """Offset of packed codes, which makes them non-negative."""
        return self.levels if self.bits < 8 else 0

    def payload_size(self, layers: int, length: int) -> int:
        """Return the bytes of a stack: its norms, then its codes."""
        count = layers * length
        codes = packed_bytes(count, self.bits) if self.bits < 8 else count
        return _NORM_BYTES * self._count_norms(layers, length) + codes

    def encode(self, stacks: Sequence[Tensor], payloads: Sequence[Tensor]) -> None:
        """Write the norms and codes of stacks to payloads with at least the room for them."""
        noise, starts = _draw_noise(
            self.draw,
            stacks[0],
            self.context,
            count=sum(map(torch.numel, stacks)),
            lift=self.offset,
        )
        for values_BL, payload in zip(stacks, payloads, strict=True):
            norm, packed = self._split_payload(payload, values_BL)
            codes = self._codes_of(packed, values_BL)
            codes[values_BL.numel() :].zero_()
            parts = _split_buckets(values_BL, codes, norm, bucket=self.bucket)
            self._write_codes(parts, noise, starts)
            if self.bits < 8:
                pack_codes_(codes, packed, self.context.shared, bits=self.bits)

    def write_mean(self, payloads: Sequence[Tensor], update_BL: Tensor) -> None:
        """Write the mean of the values that payloads of equal stacks hold."""
        for place, payload in enumerate(payloads):
            norm, packed = self._split_payload(payload, update_BL)
            codes = self._codes_of(packed, update_BL)
            if self.bits < 8:
                unpack_codes(packed, codes, self.context.shared, bits=self.bits)
            step = self.context.shared.take("step", norm.shape)
            torch.mul(norm, 1.0 / (self.levels * len(payloads)), out=step)
            parts = _split_buckets(update_BL, codes, step, bucket=self.bucket)
            _add_decoded(parts, self.offset, self.context, first=place == 0)

    def _count_norms(self, layers: int, length: int) -> int:
        return layers * -(-length // self.bucket)

    def _split_payload(self, payload: Tensor, stack_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Return the norms and the codes of a stack in a payload that may be longer."""
        cut = _NORM_BYTES * self._count_norms(*stack_BL.shape)
        size = self.payload_size(*stack_BL.shape)
        return payload[:cut].view(torch.float32), payload[cut:size]

    def _codes_of(self, packed: Tensor, stack_BL: Tensor) -> Tensor:
        """Return memory for a stack's codes, one per byte, a multiple of 8 if they are packed."""
        if self.bits == 8:
            return packed
        rooms = -(-stack_BL.numel() // 8) * 8
        return self.context.shared.take("codes", (rooms,), torch.uint8)

    def _write_codes(self, parts: Iterator[Part], noise: Tensor, starts: Iterator[int]) -> None:
        for values_BKD, codes_BKD, norm_BK1 in parts:
            scaled_BKD = self.context.shared.take("values", values_BKD.shape, values_BKD.dtype)
            norm_BK1.copy_(torch.abs(values_BKD, out=scaled_BKD).amax(2, keepdim=True)).clamp_(
                min=_LEAST_NORM
            )
            start = next(starts)
            u_BKD = noise[start : start + scaled_BKD.numel()].view(scaled_BKD.shape)
            inverse_BK1 = self.levels / norm_BK1.to(values_BKD.dtype)
            torch.addcmul(u_BKD, values_BKD, inverse_BK1, out=scaled_BKD)
            # Noise close to 1 and the product's rounding could exceed the largest code of 8 bits.
            codes_BKD.copy_(scaled_BKD.floor_().clamp_(max=self.levels + self.offset))


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


def _draw_noise(
    draw: torch.Generator, like: Tensor, context: Context, *, count: int, lift: int
) -> tuple[Tensor, Iterator[int]]:
    """Return uniform numbers in (0, 1) plus `lift`, and random indices to start at.

    There are enough numbers for a block from every start, of `like`, the largest of the stacks,
    which have `count` values together.
    """
    size = min(_TILE, max(16, -(-count // 16) * 16))
    words = torch.empty(size // 8, dtype=torch.int64, device="cpu").random_(
        -(1 << 63), None, generator=draw
    )
    drawn = words.view(torch.int16).bitwise_right_shift_(16 - _NOISE_BITS)
    drawn = copy_to_device(drawn, like.device)
    longest = min(block_size(like.device), like.numel())
    noise = context.shared.take("noise", (size + longest,), like.dtype)
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
