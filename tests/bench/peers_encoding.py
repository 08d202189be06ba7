"""Peers of the sparse and the quantising methods: plain torch, as one writes it from the papers.

Each does a worker's whole exchange of one flat tensor: add what is owed, encode into bytes, give
them to the network, decode what comes back into a dense update, keep what is owed now. L is the
number of values, S that of those selected, K the number of bins or buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Exchange = Callable[[Tensor], Tensor]
"""Bytes of this worker to bytes of the group."""


class Peer:
    """Keeps the residual; `update` and `payload_bytes` are those of the last call."""

    def __init__(self, exchange: Exchange, options: Mapping[str, float]) -> None:
        self._exchange, self._options = exchange, options
        self.owed: Tensor | None = None
        self.update = torch.empty(0)
        self.payload_bytes = 0

    def __call__(self, gradient_L: Tensor) -> None:
        """One exchange; the gradient stays as it is."""
        raise NotImplementedError

    def _compensated(self, gradient_L: Tensor) -> Tensor:
        return gradient_L.clone() if self.owed is None else gradient_L + self.owed

    def _sent(self, *parts: Tensor) -> list[Tensor]:
        """The parts as they come back from the network."""
        raw = [part.view(torch.uint8) for part in parts]
        self.payload_bytes = sum(part.numel() for part in raw)
        answered = self._exchange(torch.cat(raw)).split([part.numel() for part in raw])
        return [answer.view(part.dtype) for answer, part in zip(answered, parts, strict=True)]


class TopK(Peer):
    """`torch.topk` of all magnitudes; 32-bit positions and fp32 values."""

    def __call__(self, gradient_L: Tensor) -> None:
        g_L = self._compensated(gradient_L)
        count = round(self._options["density"] * g_L.numel())
        i_S = torch.topk(g_L.abs(), count, sorted=False).indices
        values, positions = self._sent(g_L[i_S], i_S.to(torch.int32))
        self.update = torch.zeros_like(g_L)
        self.update[positions.long()] = values
        g_L[i_S] = 0.0
        self.owed = g_L


class AdaComp(Peer):
    """arXiv:1712.02679 in three passes: what is owed, the largest of each bin, the selection.

    On the wire: how many each bin sends, then for each its position in the bin with the sign on
    top, in 8 bits for bins of at most 128 and in 16 above.
    """

    def __call__(self, gradient_L: Tensor) -> None:
        length = int(self._options["bin"])
        narrow = length <= 1 << 7
        g_L = self._compensated(gradient_L)
        h_L = g_L + gradient_L
        g_KB, h_KB = _cut(g_L, length), _cut(h_L, length)
        largest_K1 = g_KB.abs().amax(1, keepdim=True)
        scale = largest_K1.mean()
        mask_KB = (h_KB.abs() >= largest_K1) & (largest_K1 > 0)
        bins_S, places_S = mask_KB.nonzero(as_tuple=True)
        codes_S = places_S | ((g_KB[bins_S, places_S] < 0).long() << (7 if narrow else 15))
        counts_K = mask_KB.sum(1).to(torch.uint8 if narrow else torch.int16)
        # a 16-bit code with the sign on top wraps round to a negative number with the same bits
        sent = self._sent(
            scale.view(1), counts_K, codes_S.to(torch.uint8 if narrow else torch.int16)
        )
        self.update = _decoded_bins(*sent, length=length)[: g_L.numel()]
        self.owed = g_L - self.update


def _cut(values_L: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(values_L, (0, -values_L.numel() % length)).view(-1, length)


def _decoded_bins(scale: Tensor, counts_K: Tensor, codes_S: Tensor, *, length: int) -> Tensor:
    top = 7 if codes_S.dtype == torch.uint8 else 15
    bins_S = torch.repeat_interleave(torch.arange(counts_K.numel()), counts_K.long())
    wide_S = codes_S.long() & (2 << top) - 1
    update_KB = torch.zeros(counts_K.numel(), length)
    update_KB[bins_S, wide_S & (1 << top) - 1] = torch.where(wide_S >> top == 1, -scale, scale)
    return update_KB.view(-1)


class Sign(Peer):
    """One bit a value, packed by shifts, and one scale: the mean magnitude (arXiv:1901.09847)."""

    def __call__(self, gradient_L: Tensor) -> None:
        g_L = self._compensated(gradient_L)
        shifts_8 = torch.arange(8, dtype=torch.uint8)
        bits_L = (g_L.sign() > 0).to(torch.uint8)
        bits_X8 = _cut(bits_L, 8)
        packed_X = (bits_X8 << shifts_8).sum(1, dtype=torch.uint8)
        packed, scale = self._sent(packed_X, g_L.abs().mean().view(1))
        signs_L = ((packed.view(-1, 1) >> shifts_8) & 1).view(-1)[: g_L.numel()]
        self.update = (signs_L.float() * 2 - 1) * scale
        self.owed = g_L - self.update


class Quantised(Peer):
    """QSGD (arXiv:1610.02132): a bucket's norm, then levels between -127 and 127 of it by
    stochastic rounding.
    """

    def __call__(self, gradient_L: Tensor) -> None:
        length, most = int(self._options["bucket"]), 2 ** (int(self._options["bits"]) - 1) - 1
        x_KB = _cut(gradient_L, length)
        norm_K1 = torch.linalg.vector_norm(x_KB, ord=self._options["norm"], dim=1, keepdim=True)
        part_KB = x_KB.abs() / norm_K1.clamp_min(torch.finfo(torch.float32).tiny) * most
        level_KB = (part_KB + torch.rand_like(part_KB)).floor_().clamp_(max=most)
        codes_KB = (level_KB * x_KB.sign()).to(torch.int8)
        codes, norms = self._sent(codes_KB.view(-1), norm_K1.view(-1))
        update_KB = codes.view(x_KB.shape).float() * (norms.view(-1, 1) / most)
        self.update = update_KB.view(-1)[: gradient_L.numel()]
