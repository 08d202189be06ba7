"""The peer for PowerSGD on a CPU: what epfml's package does, written plainly from its description
(arXiv:1905.13727).

It runs after backward on all gradients at once. The gradient tensors themselves keep the residual:
what is left of a gradient stays in `.grad`, and the next backward adds to it, so nobody calls
`zero_grad`. Layers of equal shape share a batch; all factors of one side lie in one buffer and
travel in one all-reduce; what is not compressed travels in another. `sides` is how many of P and Q
are computed and sent in a step: 2 is the paper's step and the package's documented use, 1
alternates between them and sends half the bytes.

Legend: B layers of one shape, N rows, M columns, R the rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

LEAST_GAIN = 2.0
"""A layer is compressed when its factors are smaller than it by more than this (the package's
default).
"""


class PeerPowerSGD:
    """Residuals live in the gradients, P and Q here."""

    def __init__(self, parameters: Sequence[Tensor], *, rank: int, sides: int) -> None:
        self._sides, self._turn = sides, 0
        self._groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._dense: list[int] = []
        for index, parameter in enumerate(parameters):
            if not self._place(index, parameter, rank):
                self._dense.append(index)
        draw = torch.Generator().manual_seed(0)
        sizes = [(len(members), shape) for shape, members in self._groups.items()]
        self._p_buffer, self._p_BNRs = _packed(
            [(b, n, min(rank, n, m)) for b, (n, m) in sizes], draw
        )
        self._q_buffer, self._q_BMRs = _packed(
            [(b, m, min(rank, n, m)) for b, (n, m) in sizes], draw
        )
        self.payload_bytes = 0
        """Payload of the last step."""

    def aggregate_(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The averaged gradients; in the tensors given stays what was not sent."""
        self.payload_bytes = 0
        averaged = [torch.empty_like(gradient) for gradient in gradients]
        batches = [
            torch.stack([_matrix(gradients[i]) for i in members])
            for members in self._groups.values()
        ]
        updates = [torch.zeros_like(batch) for batch in batches]
        for _ in range(self._sides):
            self._half_step_(batches, updates)
        for members, batch, update in zip(self._groups.values(), batches, updates, strict=True):
            for place, index in enumerate(members):
                _matrix(averaged[index]).copy_(update[place])
                _matrix(gradients[index]).copy_(batch[place])
        self._average_dense(gradients, averaged)
        return averaged

    def _half_step_(self, batches: Sequence[Tensor], updates: Sequence[Tensor]) -> None:
        """One side of the factors anew, averaged, and its part moved from the batches to the
        updates.
        """
        even = self._turn % 2 == 0
        self._turn += 1
        known, wanted = (self._p_BNRs, self._q_BMRs) if even else (self._q_BMRs, self._p_BNRs)
        sides = [(b.mT, u.mT) if even else (b, u) for b, u in zip(batches, updates, strict=True)]
        for basis, target, (batch, _) in zip(known, wanted, sides, strict=True):
            basis.copy_(torch.linalg.qr(basis).Q)
            target.copy_(batch @ basis)
        self._mean_(self._q_buffer if even else self._p_buffer)
        for basis, target, (batch, update) in zip(known, wanted, sides, strict=True):
            part = target @ basis.mT
            batch.sub_(part)
            update.add_(part)

    def _average_dense(self, gradients: Sequence[Tensor], averaged: Sequence[Tensor]) -> None:
        buffer = torch.cat([gradients[i].view(-1) for i in self._dense])
        self._mean_(buffer)
        parts = buffer.split([gradients[i].numel() for i in self._dense])
        for index, part in zip(self._dense, parts, strict=True):
            averaged[index].copy_(part.view_as(averaged[index]))
            gradients[index].zero_()

    def _mean_(self, buffer: Tensor) -> None:
        buffer.div_(dist.get_world_size())
        dist.all_reduce(buffer)
        self.payload_bytes += buffer.numel() * buffer.element_size()

    def _place(self, index: int, parameter: Tensor, rank: int) -> bool:
        rows, columns = _matrix(parameter).shape
        factors = 0.5 * self._sides * min(rank, rows, columns) * (rows + columns)
        compressed = parameter.numel() / factors > LEAST_GAIN
        if compressed:
            self._groups[rows, columns].append(index)
        return compressed


def _matrix(tensor: Tensor) -> Tensor:
    return tensor.view(tensor.shape[0], -1)


def _packed(
    shapes: Sequence[tuple[int, int, int]], draw: torch.Generator
) -> tuple[Tensor, list[Tensor]]:
    """One buffer of random values, and views of these shapes into it."""
    sizes = [b * rows * rank for b, rows, rank in shapes]
    buffer = torch.randn(sum(sizes), generator=draw)
    return buffer, [
        part.view(shape) for part, shape in zip(buffer.split(sizes), shapes, strict=True)
    ]
