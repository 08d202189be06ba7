"""Broadcast of a loaded checkpoint from rank 0 to all ranks, in messages of bounded size."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor

from accordion.compress.layer_tensors import memory_order_view
from accordion_workers.common.peers import Peers

PIECE_BYTES = 1 << 26
"""Largest message in which a part of a tensor is sent."""
_T = TypeVar("_T")


def broadcast_state(state: _T | None, peers: Peers, *, device: str) -> _T:
    """Return rank 0's state on all ranks: plain values and CPU tensors, nested in any way.

    Tensors are sent in pieces, one after the other, so that no rank holds the state twice. `device`
    is one that the peers can send from.
    """
    writer = _OutlineWriter()
    is_first = peers.rank == 0
    outline = peers.share_object(writer.outline_of(state) if is_first else b"")
    reader = _OutlineReader(outline)
    received = state if is_first else reader.load()
    for tensor in writer.tensors if is_first else reader.tensors:
        for piece in _split_into_pieces(tensor):
            moved = piece.to(device)
            peers.broadcast_(moved)
            if moved is not piece:
                piece.copy_(moved)
    return cast("_T", received)


_Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, stride and dtype of a tensor."""


class _OutlineWriter(pickle.Pickler):
    """Pickles a state without the contents of its tensors, which it lists in the order of their
    appearance.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._file = io.BytesIO()
        super().__init__(self._file)

    def outline_of(self, state: object) -> bytes:
        self.dump(state)
        return self._file.getvalue()

    def persistent_id(self, value: object) -> _Layout | None:
        if not isinstance(value, Tensor):
            return None
        tensor = value if memory_order_view(value).is_contiguous() else value.contiguous()
        self.tensors.append(tensor)
        return tuple(tensor.shape), tensor.stride(), tensor.dtype


class _OutlineReader(pickle.Unpickler):
    """Rebuilds a state from its outline, with the same list of tensors, whose contents are still to
    come.
    """

    def __init__(self, outline: bytes) -> None:
        self.tensors: list[Tensor] = []
        super().__init__(io.BytesIO(outline))

    def persistent_load(self, layout: _Layout) -> Tensor:
        shape, stride, dtype = layout
        self.tensors.append(torch.empty_strided(shape, stride, dtype=dtype))
        return self.tensors[-1]


def _split_into_pieces(tensor: Tensor) -> Sequence[Tensor]:
    """View a tensor's memory as byte tensors of at most `PIECE_BYTES`."""
    if not tensor.numel():
        return []
    return torch.split(memory_order_view(tensor.detach()).view(-1).view(torch.uint8), PIECE_BYTES)


__all__ = ["broadcast_state"]
