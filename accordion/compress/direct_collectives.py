"""Collectives of direct messages between all pairs of workers, for gloo on CPUs.

Gloo's own collectives pass messages around a ring, and gloo sends no message before its receive has
been posted, of which the sender learns by another trip over the link: an all-reduce of W workers
takes 4(W-1) trips. Here each worker posts all receives at once and sends to all others at once, so
that an all-reduce takes 3 trips (2 with two workers), and an all-gather or an all-to-all 2, with as
many bytes as in a ring. An all-reduce whose size was known during the one before takes a trip less.
A large one is summed in pieces, so that the sums of one piece travel while the next one arrives.
Sums are added in rank order, whatever the position of a value in its buffer, so they do not depend
on what shares the buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accordion.base.errors import HookError
from accordion.base.wire import Scratch

_PARTS, _POSTED_PARTS, _SUMS, _ROWS = range(0xACC0, 0xACC4)
"""Tags of messages. Gloo matches messages of equal tags in their order, also with those of the
training script in the same group, hence the unusual numbers.
"""
_PIECE = 1 << 17
"""Maximum number of values that a worker adds at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PostedSum:
    """Posted receives of the parts that the other workers send for an all-reduce."""

    values: int
    """Number of values of the all-reduce."""
    received: list[Tensor]
    """Memory for each piece, (W - 1, length), in the order of the peers."""
    works: list[list[Any]]
    """Receives into each piece."""
    tag: int

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the values."""
        return self.received[0].dtype


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
        self._next: _PostedSum | None = None
        """The next all-reduce, if its receives are posted already."""
        self._memory = 0
        """Which of two buffers the next posted receives take: the other one may still be read."""

    @property
    def posted_dtype(self) -> torch.dtype | None:
        """Dtype of the next all-reduce, if its receives are posted already."""
        return None if self._next is None else self._next.dtype

    def all_reduce_(self, buffer: Tensor, name: str, *, next_values: int = 0) -> None:
        """Replace a contiguous buffer, equally long on all workers, by its sum over the workers.

        Args:
            buffer: the values of this worker.
            name: identifies the memory for received parts, which is kept for the next call.
            next_values: number of values of the next all-reduce, which is then of the same dtype
                and has at least as many; 0 if it is not known. It is the same on all workers.

        Raises:
            HookError: this buffer is smaller than the call before said, or of another dtype.
        """
        values = buffer.view(-1)
        posted = self._next or self._post_receives(values.numel(), values.dtype, f"{name} received")
        self._check_size(values, posted)
        self._next = self._post_next(next_values, values.dtype) if next_values else None
        self._sum_(values[: posted.values], posted)
        rest = values[posted.values :]
        if rest.numel():
            self._sum_(rest, self._post_receives(rest.numel(), rest.dtype, f"{name} rest"))

    def all_gather(self, gathered: Tensor, row: Tensor) -> None:
        """Fill `gathered`, (W, length), with the rows of all workers in rank order."""
        self.all_to_all(gathered, [row] * self._world_size)

    def all_to_all(self, received: Tensor, parts: Sequence[Tensor]) -> None:
        """Fill `received`, (W, length), with the parts for this worker, in rank order.

        `parts` are those of this worker for all ranks.
        """
        incoming = [self._receive(received[peer], peer, _ROWS) for peer in self._peers]
        received[self._rank].copy_(parts[self._rank])
        outgoing = self._send_to_peers([parts[peer] for peer in self._peers], _ROWS)
        _wait_for([*incoming, *outgoing])

    def _post_next(self, values: int, dtype: torch.dtype) -> _PostedSum:
        self._memory = 1 - self._memory
        return self._post_receives(values, dtype, f"posted {self._memory}", tag=_POSTED_PARTS)

    def _post_receives(
        self, values: int, dtype: torch.dtype, name: str, *, tag: int = _PARTS
    ) -> _PostedSum:
        """Post the receives of the parts that the other workers send to this one."""
        lengths = [self._part_length(piece) for piece in self._piece_sizes(values)]
        memory = self._scratch.take(name, (len(self._peers) * sum(lengths),), dtype)
        received = [
            piece.view(len(self._peers), -1)
            for piece in torch.split(memory, [len(self._peers) * length for length in lengths])
        ]
        works = [
            [self._receive(row, peer, tag) for row, peer in zip(piece, self._peers, strict=True)]
            for piece in received
        ]
        return _PostedSum(values=values, received=received, works=works, tag=tag)

    def _piece_sizes(self, values: int) -> list[int]:
        """Return how many values of an all-reduce are summed at a time, by all workers together."""
        largest = _PIECE if self._world_size == 2 else _PIECE * self._world_size
        return [min(largest, values - start) for start in range(0, max(values, 1), largest)]

    def _part_length(self, piece: int) -> int:
        """Return how many values of a piece this worker adds."""
        if self._world_size == 2:
            return piece
        length, longer = divmod(piece, self._world_size)
        return length + (self._rank < longer)  # as `tensor_split` does

    def _check_size(self, values: Tensor, posted: _PostedSum) -> None:
        if values.numel() < posted.values or values.dtype != posted.dtype:
            raise HookError(
                f"a mean of {values.numel()} values of {values.dtype} was requested where the mean"
                f" before it had next_values={posted.values} of {posted.dtype};"
                " next_values must be the size of the mean that a compressor requests next"
            )

    def _sum_(self, values: Tensor, posted: _PostedSum) -> None:
        """Replace values by their sums.

        Two workers exchange all values, and both add. More workers send each worker its part; each
        adds one part and sends the sum to all. A peer's sum arrives in the memory of the part that
        was sent to this peer, which the peer has received by then.
        """
        pieces = torch.split(values, self._piece_sizes(posted.values))
        arriving = list(zip(posted.received, posted.works, strict=True))
        if self._world_size == 2:
            sent = [self._send_to_peers([piece], posted.tag) for piece in pieces]
            for piece, outgoing, (received, incoming) in zip(pieces, sent, arriving, strict=True):
                _wait_for([*incoming, *outgoing])
                self._add_in_rank_order_(piece, received)
            return
        parts = [piece.tensor_split(self._world_size) for piece in pieces]
        works = [self._receive(part[peer], peer, _SUMS) for part in parts for peer in self._peers]
        for part in parts:
            works += self._send_to_peers([part[peer] for peer in self._peers], posted.tag)
        for part, (received, incoming) in zip(parts, arriving, strict=True):
            _wait_for(incoming)
            own = part[self._rank]
            self._add_in_rank_order_(own, received)
            works += self._send_to_peers([own] * len(self._peers), _SUMS)
        _wait_for(works)

    def _add_in_rank_order_(self, own: Tensor, received: Tensor) -> None:
        rows = {**dict(zip(self._peers, received, strict=True)), self._rank: own}
        total, *middle, last = (rows[rank] for rank in range(self._world_size))
        for row in middle:
            total.add_(row)
        torch.add(total, last, out=own)

    def _send_to_peers(self, tensors: Sequence[Tensor], tag: int) -> list[Any]:
        """Start to send a tensor to each peer."""
        return [
            self._send(tensor, peer, tag) for peer, tensor in zip(self._peers, tensors, strict=True)
        ]

    def _receive(self, tensor: Tensor, peer: int, tag: int) -> Any:
        if not tensor.numel():
            return None
        return dist.irecv(tensor, group=self._group, group_src=peer, tag=tag)

    def _send(self, tensor: Tensor, peer: int, tag: int) -> Any:
        if not tensor.numel():
            return None
        return dist.isend(tensor, group=self._group, group_dst=peer, tag=tag)


def _wait_for(works: Iterable[Any]) -> None:
    """Wait for messages, for each only once: gloo would wait for another one.

    None stands for an empty message, which is not sent.
    """
    for work in works:
        if work is not None:
            work.wait()
