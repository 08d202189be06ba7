"""Random positions without a permutation: one in each of K strata of a layer.

B layers of L entries, K positions in each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from accordion.wire import Scratch


def draw_positions(shape: tuple[int, int, int], draw: torch.Generator, scratch: Scratch) -> Tensor:
    """K distinct positions a layer, int64, flat, counted over the whole stack; `shape` is (B, L, K)
    with K <= L.

    A layer is cut into K strata whose lengths differ by one at most, and turned by a random offset;
    so every entry is drawn with the same probability K/L, and neighbours are drawn together less
    often than by chance. `draw` lives on the CPU.
    """
    layers, length, count = shape
    edges = scratch.take("edges", (layers * count + 1,), torch.float64)
    torch.arange(layers * count + 1, dtype=edges.dtype, device=edges.device, out=edges)
    # B·K strata over the stack: the edge of number b·K is b·L, so that no stratum reaches into
    # another layer
    edges.mul_(length).div_(count).floor_()
    places = scratch.take("places", (layers * count,), torch.float64)
    _uniform_(places, draw)
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


def _uniform_(values: Tensor, draw: torch.Generator) -> None:
    """Fill with uniform draws from [0, 1); a generator on the CPU fills no other device's
    memory.
    """
    if values.device.type == "cpu":
        values.uniform_(generator=draw)
    else:
        values.copy_(torch.rand(values.shape, generator=draw, dtype=values.dtype, device="cpu"))
