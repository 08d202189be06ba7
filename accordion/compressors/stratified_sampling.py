"""Stratified sampling of random positions: one in each of K strata of a layer, no permutation.

B layers of L entries, K positions in each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from accordion.base.wire import Scratch

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIXING = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1))
"""Step, shifts and factors of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), signed."""


def draw_positions(shape: tuple[int, int, int], draw: torch.Generator, scratch: Scratch) -> Tensor:
    """Draw K distinct positions in each layer; return them flat, in int64, counted over the stack.

    `shape` is (B, L, K) with K <= L; `draw` is a CPU generator. A layer is cut into K strata whose
    lengths differ by at most one, and rotated by a random offset, so that every entry is drawn with
    probability K/L, and neighbours together less often than by chance.
    """
    layers, length, count = shape
    edges = scratch.take("edges", (layers * count + 1,), torch.float64)
    torch.arange(layers * count + 1, dtype=edges.dtype, device=edges.device, out=edges)
    # B·K strata over the stack; edge b·K is at b·L, so that no stratum crosses layers.
    edges.mul_(length).div_(count).floor_()
    places = scratch.take("places", (layers * count,), torch.float64)
    _fill_uniform_(places, draw)
    offset = int(torch.randint(length, (), generator=draw, dtype=torch.int64, device="cpu"))
    widths = torch.sub(
        edges[1:], edges[:-1], out=scratch.take("widths", places.shape, torch.float64)
    )
    places.mul_(widths).floor_().add_(edges[:-1])
    starts_B1 = (
        torch.arange(layers, dtype=torch.float64, device=places.device).mul_(length).unsqueeze(1)
    )
    places_BK = places.view(layers, count).sub_(starts_B1).add_(offset)
    turns = torch.div(places_BK, length, out=widths.view(layers, count)).floor_()
    places_BK.sub_(turns, alpha=length).add_(starts_B1)
    return scratch.take("positions", places.shape, torch.int64).copy_(places)


def _fill_uniform_(values: Tensor, draw: torch.Generator) -> None:
    """Fill with uniform draws from [0, 1); on other devices than a CPU with hashes of the indices.

    There a CPU generator would take longer than all else, and the device's own numbers would depend
    on its model.
    """
    if values.device.type == "cpu":
        values.uniform_(generator=draw)
    else:
        key = torch.empty((), dtype=torch.int64, device="cpu").random_(
            -(1 << 63), None, generator=draw
        )
        hash_uniform_(values, int(key))


def hash_uniform_(values: Tensor, key: int) -> None:
    """Fill an fp64 tensor with the first numbers of splitmix64, as fractions; the same on every
    device.
    """
    state = torch.arange(values.numel(), dtype=torch.int64, device=values.device)
    state.mul_(_GOLDEN).add_(key)
    for shift, factor in _MIXING:
        state.bitwise_xor_(_shift_right(state, shift)).mul_(factor)
    values.view(-1).copy_(_shift_right(state, 64 - 53)).mul_(2.0**-53)


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """Shift as if the numbers had no sign."""
    return words.bitwise_right_shift(bits).bitwise_and_((1 << (64 - bits)) - 1)
