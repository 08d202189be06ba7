"""Bits and small codes side by side in bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.base.wire import Scratch
from accordion.compressors.packing import (
    block_size,
    pack_codes_,
    pack_signs,
    packed_bytes,
    split_blocks,
    unpack_codes,
    unpack_signs,
)

MANY = settings(max_examples=40, deadline=None)
scratch = Scratch(torch.device("cpu"))
BLOCK = block_size(torch.device("cpu"))


def signs_of(
    packed_BY: torch.Tensor, length: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    room_BL = torch.empty(len(packed_BY), 8 * packed_BY.shape[1], dtype=dtype)
    return unpack_signs(packed_BY, room_BL, scratch)[:, :length]


def packed_signs(x_BL: torch.Tensor) -> torch.Tensor:
    packed_BY = torch.full((x_BL.shape[0], -(-x_BL.shape[1] // 8)), 77, dtype=torch.uint8)
    pack_signs(x_BL, packed_BY, scratch)
    return packed_BY


@pytest.mark.parametrize("byte", range(256))
def test_every_byte_of_signs_has_the_first_value_in_its_lowest_bit(byte):
    values = torch.tensor([[-3.5 if byte >> place & 1 else 3.5 for place in range(8)]])
    assert packed_signs(values).item() == byte
    assert torch.equal(signs_of(packed_signs(values), 8), values.sign())


@given(
    rows=st.integers(1, 4),
    length=st.integers(1, 70),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@MANY
def test_signs_come_back_whatever_the_length_and_left_over_bits_are_zero(rows, length, dtype):
    x_BL = torch.randn(rows, length, generator=torch.Generator().manual_seed(length)).to(dtype)
    packed_BY = packed_signs(x_BL)
    assert torch.equal(signs_of(packed_BY, length, dtype), x_BL.sign())
    assert not (packed_BY[:, -1].int() >> (length - 1) % 8 + 1).any()


def test_zero_has_the_sign_of_its_sign_bit():
    values = torch.tensor([[0.0, -0.0, 1e-45, -1e-45, torch.inf, -torch.inf]])
    assert signs_of(packed_signs(values), 6).tolist() == [[1, -1, 1, -1, 1, -1]]


@pytest.mark.parametrize("bits", range(2, 8))
@pytest.mark.parametrize("count", [8, 16, 8 * 1001, 2 * BLOCK + 24])
@pytest.mark.parametrize("rows", [1, 3])
def test_codes_come_back_from_exactly_as_many_bits(bits, count, rows):
    draw = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (rows, count), generator=draw, dtype=torch.int8)
    size = packed_bytes(count, bits)
    room = torch.empty(rows, -(-size // 8) * 8 + 16, dtype=torch.uint8)
    packed = room[:, 8 : 8 + size]
    assert 8 * size == bits * count
    pack_codes_(codes.clone(), packed, scratch, bits=bits)
    found = torch.full_like(codes, -1)
    unpack_codes(packed, found, scratch, bits=bits)
    assert torch.equal(found, codes)


@pytest.mark.parametrize("bits", range(2, 8))
def test_codes_lie_in_order_from_the_lowest_bit_on(bits):
    codes = [(3 * place + 1) % (1 << bits) for place in range(8)]
    packed = torch.empty(1, bits, dtype=torch.uint8)
    pack_codes_(torch.tensor([codes], dtype=torch.int8), packed, scratch, bits=bits)
    assert int.from_bytes(bytes(packed[0].tolist()), "little") == sum(
        c << bits * i for i, c in enumerate(codes)
    )


@given(rows=st.integers(1, 5), columns=st.integers(1, 50), size=st.sampled_from([8, 16, 64]))
@MANY
def test_blocks_cover_every_place_once_and_stay_in_step(rows, columns, size):
    values, eighths = torch.zeros(rows, columns), torch.zeros(rows, -(-columns // 8))
    for part, part_of_eighths in split_blocks(size, values, eighths):
        assert part.numel() <= size
        assert part.is_contiguous()
        assert part_of_eighths.shape == (part.shape[0], -(-part.shape[1] // 8))
        part += 1
        part_of_eighths += 1
    assert torch.equal(values, torch.ones_like(values))
    assert torch.equal(eighths, torch.ones_like(eighths))
