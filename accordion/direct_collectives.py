"""Sums and gathers over direct messages between all pairs of workers, for gloo on CPUs.

Gloo's own collectives pass messages around a ring, and gloo sends no message before its receiver
has announced the buffer, which takes another trip over the link: an all-reduce of W workers lasts
4(W-1) trips. Here each worker announces all buffers at once and sends to all others at once, so
that a sum lasts 3 trips (2 with two workers) and a gather 2, with as many bytes as in a ring. A sum
whose size was known during the one before lasts a trip less. Sums are added in rank order, whatever
the position of a value in its buffer, so they do not depend on what shares the buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accordion.errors import HookError
from accordion.wire import Scratch

_PARTS, _SUMS, _ROWS = range(1, 4)
"""Tags of messages."""
_ONE_BY_ONE_BYTES = 1 << 18
"""Size from which messages are exchanged with one peer after the other.

Large messages that several workers send to one at the same time overflow the queue of its link:
with three hosts at 100 Mbit/s, a sum of 11 MB takes a fifth longer.
"""


@dataclass(frozen=True, slots=True)
class _Announced:
    """Buffers for the parts that the other workers send for a sum."""

    values: int
    """Number of values of the sum."""
    received: Tensor
    """(W - 1, length), in the order of the peers."""
    works: list[Any]


class DirectCollectives:
    """Collectives of the workers of a gloo group; all call the same ones in the same order.

    Args:
        group: a group of at least two workers.
        scratch: where received parts are stored until they are added.
    """

    def __init__(self, group: dist.ProcessGroup, scratch: Scratch) -> None:
        self._group = group
        self._scratch = scratch
        self._rank, self._world_size = dist.get_rank(group), dist.get_world_size(group)
        self._peers = [
            (self._rank + distance) % self._world_size for distance in range(1, self._world_size)
        ]
        """Other ranks; no two workers begin with the same one."""
        self._next: _Announced | None = None
        """Buffers of the next sum, if they are announced already."""

    @property
    def announced_dtype(self) -> torch.dtype | None:
        """Dtype of the next sum, if its buffers are announced already."""
        return None if self._next is None else self._next.received.dtype

    def sum_(self, buffer: Tensor, name: str, *, next_values: int = 0) -> None:
        """Replace a contiguous buffer, equally long on all workers, by its sum over the workers.

        Args:
            buffer: the values of this worker.
            name: identifies the memory for received parts, which is kept for the next call.
            next_values: number of values of the next sum, which is then of the same dtype and has
                at least as many; 0 if it is not known.

        Raises:
            HookError: this sum is smaller than the call before announced, or of another dtype.
        """
        values = buffer.view(-1)
        announced = self._next or self._announce(values.numel(), values.dtype, name)
        self._check_size(values, announced)
        # After the buffers of this sum: gloo fills those with equal tags in their order.
        self._next = (
            self._announce(next_values, values.dtype, f"{name} next") if next_values else None
        )
        self._add_(values[: announced.values], announced)
        rest = values[announced.values :]
        if rest.numel():
            self._add_(rest, self._announce(rest.numel(), rest.dtype, f"{name} rest"))

    def gather_rows(self, gathered: Tensor, row: Tensor) -> None:
        """Fill `gathered`, (W, length), with the rows of all workers in rank order."""
        incoming = [self._receive(gathered[peer], peer, _ROWS) for peer in self._peers]
        gathered[self._rank].copy_(row)
        self._send_to_peers([row] * len(self._peers), incoming, _ROWS)

    def _announce(self, values: int, dtype: torch.dtype, name: str) -> _Announced:
        """Announce the buffers for the parts of a sum that the other workers send to this one."""
        length = values
        if self._world_size > 2:
            length, longer = divmod(values, self._world_size)
            length += self._rank < longer  # as `tensor_split` does
        received = self._scratch.take(f"{name} received", (len(self._peers), length), dtype)
        works = [
            self._receive(row, peer, _PARTS)
            for row, peer in zip(received, self._peers, strict=True)
        ]
        return _Announced(values=values, received=received, works=works)

    def _check_size(self, values: Tensor, announced: _Announced) -> None:
        if values.numel() < announced.values or values.dtype != announced.received.dtype:
            raise HookError(
                f"a sum of {values.numel()} values of {values.dtype} was requested where"
                f" {announced.values} of {announced.received.dtype} had been announced; a"
                " compressor's next_values must be the size of the mean that it requests next"
            )

    def _add_(self, values: Tensor, announced: _Announced) -> None:
        """Replace values by their sums.

        Two workers exchange all values, and both add. More workers send each worker its part; each
        adds one part and sends the sum to all. It is received in the memory of a part that was sent
        before: its worker had received that part when it added.
        """
        if self._world_size == 2:
            self._send_to_peers([values], announced.works, _PARTS)
            self._add_in_rank_order_(values, announced.received)
            return
        parts = values.tensor_split(self._world_size)
        own = parts[self._rank]
        sums = [self._receive(parts[peer], peer, _SUMS) for peer in self._peers]
        self._send_to_peers([parts[peer] for peer in self._peers], announced.works, _PARTS)
        self._add_in_rank_order_(own, announced.received)
        self._send_to_peers([own] * len(self._peers), sums, _SUMS)

    def _add_in_rank_order_(self, own: Tensor, received: Tensor) -> None:
        rows = {**dict(zip(self._peers, received, strict=True)), self._rank: own}
        total, *middle, last = (rows[rank] for rank in range(self._world_size))
        for row in middle:
            total.add_(row)
        torch.add(total, last, out=own)

    def _send_to_peers(self, tensors: Sequence[Tensor], incoming: Sequence[Any], tag: int) -> None:
        """Send a tensor to each peer, and wait for these and for the messages from all peers.

        `incoming` are the announced buffers. Peers and their messages are in the order of
        `_peers`: when this worker sends to the one at a distance, the one at the same distance on
        the other side sends to this worker.
        """
        pending = []
        for peer, tensor, arriving in zip(self._peers, tensors, reversed(incoming), strict=True):
            pending.append(self._send(tensor, peer, tag))
            if tensor.nbytes >= _ONE_BY_ONE_BYTES:
                _wait_for([arriving])
            else:
                pending.append(arriving)
        # Each message once: gloo would wait for a second one.
        _wait_for(pending)

    def _receive(self, tensor: Tensor, peer: int, tag: int) -> Any:
        if not tensor.numel():
            return None
        return dist.irecv(tensor, group=self._group, group_src=peer, tag=tag)

    def _send(self, tensor: Tensor, peer: int, tag: int) -> Any:
        if not tensor.numel():
            return None
        return dist.isend(tensor, group=self._group, group_dst=peer, tag=tag)


def _wait_for(works: Iterable[Any]) -> None:
    """Wait for messages; None stands for an empty one, which is not sent."""
    for work in works:
        if work is not None:
            work.wait()
