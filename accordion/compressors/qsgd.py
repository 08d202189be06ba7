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

A layer, or R parts of one as rows, of L values each, the last bucket of a row shorter; K buckets of
D values, in views (R, K, D); C codes and P bytes of packed codes; S bytes of payload.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

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
_WORTH_BYTES = 1 << 12
"""Bytes that scattering a layer has to save each worker on the wire. At 40 Mbit/s they take about
as long as the calls for a second set of codes, 0.8 ms.
"""


def qsgd_flow(owed_BL: Tensor, context: Context) -> Flow:
    """Send `bits` bits per value and an fp32 norm per bucket, of a stack of one layer."""
    if not owed_BL.numel():
        return
    owed_1L, update_1L = owed_BL.view(1, -1), context.update.view(1, -1)
    coder = _Coder(
        bits=int(context.options["bits"]),
        bucket=int(context.options["bucket"]),
        context=context,
        draw=context.draw("own"),
    )
    workers, rank = context.world_size, context.rank
    length = -(-owed_1L.shape[1] // (8 * workers)) * 8
    whole, part = coder.payload_size(owed_1L.shape[1]), coder.payload_size(length)
    if (workers - 1) * (whole - 2 * part) < _WORTH_BYTES:
        payload = context.scratch.take("payload", (1, whole), torch.uint8)
        coder.encode([owed_1L], payload)
        coder.write_mean((yield Gather(payload[0], equal=True)), update_1L)
        return
    payload = context.scratch.take("payload", (workers, part), torch.uint8)
    coder.encode(_as_rows(owed_1L, length), payload)
    payloads = yield Scatter(list(payload))
    own = update_1L[:, rank * length : (rank + 1) * length]
    payload = context.scratch.take("mean", (1, part), torch.uint8)
    if own.numel():  # nothing is left for the last of many workers
        coder.write_mean(payloads, own)
        coder.encode([own], payload)
    coder.write_rows((yield Gather(payload[0], equal=True)), _as_rows(update_1L, length))


Part = tuple[Tensor, ...]
"""Values, codes in int8, and norms or steps of the buckets: (R, K, D), (R, K, D), (R, K, 1)."""


def _as_rows(values_1L: Tensor, length: int) -> list[Tensor]:
    """Return the parts of a layer: a stack of those of this length, and the shorter last one."""
    cut = values_1L.shape[1] // length * length
    parts = [values_1L[:, :cut].view(-1, length), values_1L[:, cut:]]
    return [part for part in parts if part.numel()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coder:
    """Encodes and decodes stacks of rows; each row has a payload of its own, which may be longer
    than the row needs.
    """

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

    def payload_size(self, length: int) -> int:
        """Return the bytes of a row: its norms, then its codes."""
        return padded_size(self._norm_bytes(length) + self._code_bytes(length))

    def encode(self, stacks: Sequence[Tensor], payload_RS: Tensor) -> None:
        """Write the norms and codes of the rows of stacks."""
        noise, starts = self._draw_noise(stacks)
        for values_RL, rows_RS in zip(stacks, _split_rows(payload_RS, stacks), strict=True):
            norm_RK, packed_RP = self._split_payload(rows_RS, values_RL.shape[1])
            codes_RC = self._codes_of(packed_RP, values_RL.shape)
            codes_RC[:, values_RL.shape[1] :].zero_()
            parts = _split_buckets(values_RL, codes_RC, norm_RK, bucket=self.bucket)
            self._write_codes(parts, noise, starts)
            if self.bits < 8:
                pack_codes_(codes_RC, packed_RP, self.context.shared, bits=self.bits)

    def write_mean(self, payloads: Sequence[Tensor], update_1L: Tensor) -> None:
        """Write the mean of rows that have one payload each; of small ones all at once, because the
        calls take longer than the work.
        """
        share, shape = 1.0 / len(payloads), (len(payloads), update_1L.shape[1])
        if math.prod(shape) <= block_size(update_1L.device):
            rows_RL = self.context.shared.take("rows", shape, update_1L.dtype)
            self.write_rows(payloads, [rows_RL], share=share)
            update_1L.copy_(rows_RL[:1])
            for row_L in rows_RL[1:]:  # in rank order on every processor, which `sum` is not
                update_1L.add_(row_L)
            return
        for place, payload in enumerate(payloads):
            self._decode(payload.view(1, -1), update_1L, share=share, first=place == 0)

    def write_rows(
        self, payloads: Sequence[Tensor], stacks: Sequence[Tensor], *, share: float = 1.0
    ) -> None:
        """Write a share of the rows of stacks that have one payload each."""
        shape = (len(payloads), payloads[0].numel())
        payload_RS = self.context.shared.take("payloads", shape, torch.uint8)
        torch.stack(list(payloads), out=payload_RS)
        for update_RL, rows_RS in zip(stacks, _split_rows(payload_RS, stacks), strict=True):
            self._decode(rows_RS, update_RL, share=share, first=True)

    def _decode(self, payload_RS: Tensor, update_RL: Tensor, *, share: float, first: bool) -> None:
        """Add a share of the decoded values to the update; the first ones replace its content."""
        norm_RK, packed_RP = self._split_payload(payload_RS, update_RL.shape[1])
        codes_RC = self._codes_of(packed_RP, update_RL.shape)
        if self.bits < 8:
            unpack_codes(packed_RP, codes_RC, self.context.shared, bits=self.bits)
        step_RK = self.context.shared.take("step", norm_RK.shape)
        torch.mul(norm_RK, share / self.levels, out=step_RK)
        parts = _split_buckets(update_RL, codes_RC, step_RK, bucket=self.bucket)
        _add_decoded(parts, self.offset, self.context, first=first)

    def _norm_bytes(self, length: int) -> int:
        return _NORM_BYTES * -(-length // self.bucket)

    def _code_bytes(self, length: int) -> int:
        return length if self.bits == 8 else packed_bytes(length, self.bits)

    def _split_payload(self, payload_RS: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return the norms and the codes of rows of this length."""
        cut = self._norm_bytes(length)
        codes = slice(cut, cut + self._code_bytes(length))
        return payload_RS[:, :cut].view(torch.float32), payload_RS[:, codes]

    def _codes_of(self, packed_RP: Tensor, shape: torch.Size) -> Tensor:
        """Return the memory of codes that have a byte each; rows of packed ones are filled up."""
        if self.bits == 8:
            return packed_RP
        rows, length = shape
        return self.context.shared.take("codes", (rows, -(-length // 8) * 8), torch.uint8)

    def _write_codes(self, parts: Iterator[Part], noise: Tensor, starts: Iterator[int]) -> None:
        for values_RKD, codes_RKD, norm_RK1 in parts:
            scaled_RKD = self.context.shared.take("values", values_RKD.shape, values_RKD.dtype)
            norm_RK1.copy_(torch.abs(values_RKD, out=scaled_RKD).amax(2, keepdim=True)).clamp_(
                min=_LEAST_NORM
            )
            start = next(starts)
            u_RKD = noise[start : start + scaled_RKD.numel()].view(scaled_RKD.shape)
            inverse_RK1 = self.levels / norm_RK1.to(values_RKD.dtype)
            torch.addcmul(u_RKD, values_RKD, inverse_RK1, out=scaled_RKD)
            # Noise close to 1 and the product's rounding could exceed the largest code of 8 bits.
            codes_RKD.copy_(scaled_RKD.floor_().clamp_(max=self.levels + self.offset))

    def _draw_noise(self, stacks: Sequence[Tensor]) -> tuple[Tensor, Iterator[int]]:
        """Return uniform numbers in (0, 1) plus the offset, and random indices to start at.

        There are enough numbers for a block from every start.
        """
        count, like = sum(map(torch.numel, stacks)), stacks[0]
        size = min(_TILE, max(16, -(-count // 16) * 16))
        words = torch.empty(size // 8, dtype=torch.int64, device="cpu").random_(
            -(1 << 63), None, generator=self.draw
        )
        drawn = words.view(torch.int16).bitwise_right_shift_(16 - _NOISE_BITS)
        drawn = copy_to_device(drawn, like.device)
        longest = min(block_size(like.device), count)
        noise = self.context.shared.take("noise", (size + longest,), like.dtype)
        shift = torch.rand((), generator=self.draw, dtype=torch.float64, device="cpu")
        offset = float(shift) - 0.5
        noise[: size // 2].copy_(drawn).add_(offset)
        noise[size // 2 : size].copy_(drawn.bitwise_not_()).sub_(offset)
        noise[:size].add_(0.5).mul_(0.5**_NOISE_BITS).add_(0.5 + self.offset)
        filled = size
        while filled < len(noise):  # a few long copies: on a GPU each call costs as much as a block
            noise[filled : 2 * filled].copy_(noise[: min(filled, len(noise) - filled)])
            filled *= 2
        return noise, _random_starts(size, self.draw)


def _split_rows(payload_RS: Tensor, stacks: Sequence[Tensor]) -> list[Tensor]:
    """Return the rows of payload of each stack; what is left over belongs to none."""
    ends = [*accumulate(map(len, stacks), initial=0)]
    return [payload_RS[start:end] for start, end in pairwise(ends)]


def _split_buckets(
    values_RL: Tensor, codes_RC: Tensor, norm_RK: Tensor, *, bucket: int
) -> Iterator[Part]:
    """Yield blocks of buckets: those of full size, then the shorter last ones of all rows."""
    rows, length = values_RL.shape
    whole = length // bucket
    cut = whole * bucket
    for columns, width, norms_RK in (
        (slice(0, cut), bucket, norm_RK[:, :whole]),
        (slice(cut, length), length - cut, norm_RK[:, whole:]),
    ):
        if norms_RK.numel():
            values_RKD = values_RL[:, columns].view(rows, -1, width)
            codes_RKD = codes_RC[:, columns].view(torch.int8).view(rows, -1, width)
            at_once = max(1, block_size(norm_RK.device) // width)
            yield from split_blocks(at_once, values_RKD, codes_RKD, norms_RK.unsqueeze(2))


def _random_starts(size: int, draw: torch.Generator) -> Iterator[int]:
    while True:
        yield from (
            torch.randint(0, size // 16, (256,), generator=draw, dtype=torch.int64, device="cpu")
            .mul_(16)
            .tolist()
        )


def _add_decoded(parts: Iterator[Part], lift: int, context: Context, *, first: bool) -> None:
    """Add one worker's decoded values to the update; the first worker's replace its content."""
    for update_RKD, codes_RKD, step_RK1 in parts:
        decoded_RKD = context.shared.take("values", update_RKD.shape, update_RKD.dtype).copy_(
            codes_RKD
        )
        if lift:
            decoded_RKD.sub_(lift)
        if first:
            torch.mul(decoded_RKD, step_RK1, out=update_RKD)
        else:
            update_RKD.addcmul_(decoded_RKD, step_RK1.to(decoded_RKD.dtype))
