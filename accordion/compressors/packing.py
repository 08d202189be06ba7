"""Bit packing: signs as one bit, and codes of 2 to 7 bits.

Eight values at a time occupy the bytes of one 64-bit word, so that plain tensor operations move all
of them at once. The first value is in bit 0 of the byte, or in the low bits of the first byte
(little-endian machines only). Signs are packed block by block, by callers of `split_blocks`; codes
all at once, each row by itself: C codes in P bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from accordion.base.wire import Scratch

_BLOCK_ON_CPU, _BLOCK_ELSEWHERE = 1 << 17, 1 << 24
"""Values in a block. On a CPU, a block and a temporary of its size about fill a core's
second-level cache (1 MB); with smaller blocks, the calls cost more than the cache saves (0.5 to 2
microseconds each, measured on an EPYC core). On a GPU only the temporaries' memory counts: 64 MB.
"""
_BITS_TO_TOP_BYTE = 0x0102040810204080
"""Factor that moves the 0 or 1 in every byte of a word to the top byte, the lowest bit first."""
_SIGNS_TO_TOP_BYTE = (_BITS_TO_TOP_BYTE * pow(255, -1, 1 << 64) + (1 << 63)) % (1 << 64) - (1 << 63)
"""Factor for words with 0 or -1 in every byte, which are 255 times those with 0 or 1."""
_INT_OF_WIDTH = {2: torch.int16, 4: torch.int32}
"""Type to which a word of eight codes of this many bits can be converted at once."""


def block_size(device: torch.device) -> int:
    """Return the number of values that one operation should process."""
    return _BLOCK_ON_CPU if device.type == "cpu" else _BLOCK_ELSEWHERE


def split_blocks(size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield views of corresponding parts of tensors, with at most `size` values of the first one.

    A part has several whole rows or a piece of one. All tensors have equally many rows; one with an
    eighth of the columns, rounded up, is split accordingly if `size` is a multiple of 8.
    """
    rows, columns = tensors[0].shape[:2]
    if rows * columns <= size:  # the most common case by far: small layers
        if tensors[0].numel():
            yield tensors
        return
    if columns <= size:
        yield from zip(*(torch.split(tensor, size // columns) for tensor in tensors), strict=True)
        return
    steps = [size // -(-columns // tensor.shape[1]) for tensor in tensors]
    for row in range(rows):
        of_row = [
            torch.split(tensor[row : row + 1], step, 1)
            for tensor, step in zip(tensors, steps, strict=True)
        ]
        yield from zip(*of_row, strict=True)


def pack_signs(x_BL: Tensor, packed_BY: Tensor, scratch: Scratch) -> None:
    """Write the sign bits of fp32 or fp64 values, Y = ceil(L / 8) bytes per row.

    A 1 means negative; unused bits are 0. The temporary is the scratch's "values", which callers
    also use, so that one block less is in the cache.
    """
    rows, columns = x_BL.shape
    integer, top = (torch.int64, 63) if x_BL.dtype == torch.float64 else (torch.int32, 31)
    negative_BL = scratch.take("values", x_BL.shape, x_BL.dtype).view(integer)
    # A shift takes a fifth of the time of a comparison.
    torch.bitwise_right_shift(x_BL.view(integer), top, out=negative_BL)
    bytes_BL = scratch.take("sign bytes", (rows, 8 * packed_BY.shape[1]), torch.int8)
    bytes_BL[:, columns:].zero_()
    bytes_BL[:, :columns].copy_(negative_BL)
    words_BY = bytes_BL.view(torch.int64)
    packed_BY.copy_(words_BY.mul_(_SIGNS_TO_TOP_BYTE).bitwise_right_shift_(56))


@cache
def sign_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the eight signs, +1 or -1, of each byte value, (256, 8)."""
    bits = torch.arange(256, dtype=torch.int64, device=device).unsqueeze(1) >> torch.arange(
        8, dtype=torch.int64, device=device
    )
    return (1 - 2 * (bits & 1)).to(dtype)


def unpack_signs(packed_BY: Tensor, signs_BL: Tensor, scratch: Scratch) -> Tensor:
    """Write the signs, +1 or -1, into a contiguous tensor, (B, 8Y), and return it."""
    index = scratch.take("sign index", packed_BY.shape, torch.int32).copy_(packed_BY).view(-1)
    torch.index_select(
        sign_table(signs_BL.dtype, signs_BL.device), 0, index, out=signs_BL.view(-1, 8)
    )
    return signs_BL


def packed_bytes(count: int, bits: int) -> int:
    """Return the size of packed codes in bytes, with the last group of eight padded."""
    return -(-count // 8) * bits


def pack_codes_(codes_RC: Tensor, packed_RP: Tensor, scratch: Scratch, *, bits: int) -> None:
    """Pack codes below 2**bits, one per byte, into `bits` bytes for eight codes; changes the codes.

    Rows of codes have a multiple of 8 and begin at a multiple of 8 bytes; packed rows are uint8 and
    begin at a multiple of 4 bytes. `bits` is 2 to 7.
    """
    for words, part in _split_words(codes_RC, packed_RP, bits):
        upper = scratch.take("upper", words.shape, torch.int64)
        for lane in (8, 16, 32):
            width = bits * lane // 8
            torch.bitwise_and(words, _fill_lanes(((1 << width) - 1) << lane, lane), out=upper)
            words.bitwise_and_(_fill_lanes((1 << width) - 1, lane)).bitwise_or_(
                upper.bitwise_right_shift_(lane - width)
            )
        if bits in _INT_OF_WIDTH:
            part.view(_INT_OF_WIDTH[bits]).copy_(words)
        else:
            part.copy_(words.view(torch.uint8)[:, :, :bits])


def unpack_codes(packed_RP: Tensor, codes_RC: Tensor, scratch: Scratch, *, bits: int) -> None:
    """Unpack what `pack_codes_` packed; the tensors have the same layout."""
    for words, part in _split_words(codes_RC, packed_RP, bits):
        upper = scratch.take("upper", words.shape, torch.int64)
        if bits in _INT_OF_WIDTH:
            words.copy_(part.view(_INT_OF_WIDTH[bits]))
        else:
            words.view(torch.uint8)[:, :, :bits].copy_(part)
        for lane in (32, 16, 8):
            width = bits * lane // 8
            torch.bitwise_and(words, _fill_lanes(((1 << width) - 1) << width, lane), out=upper)
            words.bitwise_and_(_fill_lanes((1 << width) - 1, lane)).bitwise_or_(
                upper.bitwise_left_shift_(lane - width)
            )


def _split_words(codes_RC: Tensor, packed_RP: Tensor, bits: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield blocks of codes as words of eight, with the corresponding packed bytes: blocks of shape
    (rows, words, 1) and (rows, words, bits).
    """
    words = codes_RC.view(torch.int64).unsqueeze(2)
    groups = packed_RP.view(*words.shape[:2], bits)
    return split_blocks(block_size(codes_RC.device) // 8, words, groups)


def _fill_lanes(pattern: int, lane: int) -> int:
    """Return a word with the pattern in every double lane, as a signed number."""
    word = sum(pattern << place for place in range(0, 64, 2 * lane))
    return word - (1 << 64) if word >> 63 else word
