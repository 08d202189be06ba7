"""AdaComp: sends the entries of each bin that the newest gradient makes large, as signs
(arXiv:1712.02679).

B layers of L entries are cut into K bins of T entries (the last bin of a layer may be shorter), of
which S entries are sent. With G = gradient + residual and H = G + gradient, an entry is sent if |H|
is at least the largest |G| of its bin. Its value is sign(G) times the layer's scale, which is the
mean over the bins of their largest |G|.

The payload holds B scales in fp32, then codes of 8 bits (T up to 62) or 16 bits, bin after bin. A
code is `index in the bin << 2 | negative << 1 | first of its bin`. The largest index means that the
bin is empty: every bin has a first code, so that a reader can count the bins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from accordion.base.wire import Context, Flow, Gather, Scratch

NARROW = 62
"""Largest bin, in entries, for codes of 8 bits; one more index marks an empty bin."""
CACHED = 1 << 17
"""Entries in a block on a CPU, which fit into its cache."""
LAUNCHED = 1 << 22
"""Entries in a block on other devices, where each block waits for the number of sent entries."""
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""Integer types in which magnitudes are compared: equal order, and row maxima are 4x faster."""


def adacomp_flow(owed_BL: Tensor, context: Context) -> Flow:
    """Send the selected entries of each bin; the update is their mean over the workers."""
    if context.gradient is None:
        raise ValueError(
            "adacomp selects by the raw gradient and was given none; its row must ask for it"
        )
    size = context.options["bin_conv" if context.kind == "conv" else "bin_other"]
    bins = _Bins(layers=owed_BL.shape[0], values=owed_BL.shape[1], size=int(size))
    entries = min(
        CACHED if owed_BL.is_cpu else LAUNCHED, max(1, bins.layers * bins.per_layer) * bins.size
    )
    coder = _Coder(bins, context.shared, entries)
    encoded = coder.encode_(owed_BL, context.gradient)
    payload = context.scratch.take("payload", encoded.shape, torch.uint8).copy_(encoded)
    payloads = context.scratch.keep((yield Gather(payload)))
    yield None  # hold
    context.update.zero_()
    for payload in payloads:
        coder.add_decoded_(context.update, payload, weight=1.0 / len(payloads))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bins:
    """Sizes of layers and bins, and the format of the codes."""

    layers: int
    values: int
    size: int

    @property
    def per_layer(self) -> int:
        return -(-self.values // self.size)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the codes; 16-bit codes use the bits of a signed type."""
        return torch.uint8 if self.size <= NARROW else torch.int16

    @property
    def nothing(self) -> int:
        """Index that marks an empty bin."""
        return (1 << 8 * self.dtype.itemsize - 2) - 1

    def blocks(self, entries: int) -> Iterator[tuple[slice, slice, slice]]:
        """Yield slices of layers, values and bins with at most `entries` entries.

        A block has several whole layers or a part of one.
        """
        width = self.per_layer * self.size
        if 2 * width <= entries:
            for layers in _cut_into_slices(self.layers, entries // max(1, width)):
                yield layers, slice(0, self.values), slice(0, self.per_layer)
            return
        for layer in range(self.layers):
            for places in _cut_into_slices(self.per_layer, entries // self.size):
                values = slice(places.start * self.size, min(places.stop * self.size, self.values))
                yield slice(layer, layer + 1), values, places


@dataclass(frozen=True, slots=True)
class _Coder:
    """Encodes a stack into a payload and decodes payloads, block by block in reused buffers."""

    bins: _Bins
    scratch: Scratch
    entries: int
    """Entries in the largest block, padding included."""
    buffers: dict[tuple[str, torch.dtype], Tensor] = field(default_factory=dict)
    """Buffers by name and type, each as long as the largest block, so that none ever grows."""

    def encode_(self, owed_BL: Tensor, gradient_BL: Tensor) -> Tensor:
        """Return the payload, and subtract its values from `owed_BL`."""
        bins, blocks = self.bins, list(self.bins.blocks(self.entries))
        largest_BK = self.scratch.take("largest", (bins.layers, bins.per_layer), owed_BL.dtype)
        for layers, values, places in blocks:
            g_KT, inner = self._cut_bins("h", owed_BL[layers, values])
            torch.abs(owed_BL[layers, values], out=inner)
            torch.amax(
                _view_as_integers(g_KT),
                1,
                out=_view_as_integers(largest_BK[layers, places].view(-1)),
            )
        limit = torch.finfo(torch.float32).max
        scale_B = largest_BK.mean(1).clamp_(max=limit).to(torch.float32)
        room = 4 * bins.layers + bins.dtype.itemsize * bins.layers * bins.values
        payload = self.scratch.take("payload", (room,), torch.uint8)
        payload[: 4 * bins.layers].view(torch.float32).copy_(scale_B)
        codes, sent = payload[4 * bins.layers :].view(bins.dtype), 0
        for layers, values, places in blocks:
            owed, gradient = owed_BL[layers, values], gradient_BL[layers, values]
            i_S, empty_K = self._select_entries(owed, gradient, largest_BK[layers, places].view(-1))
            scale = scale_B[layers].to(owed.dtype)
            code_S = self._take_codes_(owed, i_S, empty_K=empty_K, scale_B=scale)
            codes[sent : sent + code_S.numel()].copy_(code_S)
            sent += code_S.numel()
        return payload[: 4 * bins.layers + bins.dtype.itemsize * sent]

    def add_decoded_(self, update_BL: Tensor, payload: Tensor, *, weight: float) -> None:
        """Add a worker's values, times `weight`, to the update."""
        cut = 4 * self.bins.layers
        scale_B = payload[:cut].view(torch.float32).to(update_BL.dtype).mul_(weight)
        codes = payload[cut:].view(self.bins.dtype)
        bins_before = torch.full((1,), -1, dtype=torch.int64, device=payload.device)
        for part in _cut_into_slices(codes.numel(), self.entries // 4 + 1):
            bins_before = self._add_codes_(
                update_BL, codes[part], scale_B=scale_B, bins_before=bins_before
            )

    def _select_entries(
        self, owed: Tensor, gradient: Tensor, largest_K: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the indices of a block's selected entries, counted with padding, and empty bins.

        An empty bin contributes its first entry.
        """
        h_KT, inner = self._cut_bins("h", owed)
        torch.add(owed, gradient, out=inner)
        h_KT.abs_()
        largest_K.masked_fill_(largest_K == 0, torch.inf)
        bits_KT, least_K = _view_as_integers(h_KT), _view_as_integers(largest_K)
        empty_K = (
            torch.amax(bits_KT, 1, out=self._take_buffer("highest", h_KT.shape[0], bits_KT.dtype))
            < least_K
        )
        # With an integer mask torch is four times as fast as with bools, and finds entries as fast.
        torch.ge(bits_KT, least_K[:, None], out=bits_KT)
        bits_KT[:, 0].masked_fill_(empty_K, 1)
        room = self._take_buffer("i", self.entries, torch.int64).view(-1, 1).resize_(0, 1)
        return torch.nonzero(bits_KT.view(-1), out=room).view(-1), empty_K

    def _take_codes_(
        self, owed: Tensor, i_S: Tensor, *, empty_K: Tensor, scale_B: Tensor
    ) -> Tensor:
        """Return the codes of a block's selected entries, and subtract their values from `owed`."""
        size, count = self.bins.size, i_S.numel()
        g_KT = self._pad_bins(owed)
        g_S = torch.index_select(
            g_KT.view(-1), 0, i_S, out=self._take_buffer("g", count, owed.dtype)
        )
        places, rows = _number_entries(size, self.entries, owed.device)
        row_S = torch.index_select(rows, 0, i_S, out=self._take_buffer("row", count, torch.int32))
        code_S = torch.index_select(
            places, 0, i_S, out=self._take_buffer("code", count, torch.int32)
        )
        nothing_S = torch.eq(g_S, 0, out=self._take_buffer("nothing", count, torch.bool))
        if _is_needed(empty_K.device, empty_K.any):
            nothing_S.logical_or_(empty_K.index_select(0, row_S))
        sent_S = torch.copysign(
            self._by_entry(scale_B, row_S), g_S, out=self._take_buffer("sent", count, owed.dtype)
        )
        bits = _BITS[owed.dtype]
        negative_S = torch.bitwise_right_shift(
            g_S.view(bits), 8 * bits.itemsize - 2, out=self._take_buffer("negative", count, bits)
        )
        code_S.add_(negative_S.bitwise_and_(2))
        if _is_needed(nothing_S.device, nothing_S.any):
            sent_S.masked_fill_(nothing_S, 0)
            code_S.masked_fill_(nothing_S, self.bins.nothing << 2)
        # Every bin has an entry here, so row numbers rise by at most one.
        code_S[:1].add_(1)
        code_S[1:].add_(row_S[1:]).sub_(row_S[:-1])
        g_KT.view(-1).index_copy_(0, i_S, g_S.sub_(sent_S))
        if g_KT.data_ptr() != owed.data_ptr():
            owed.copy_(g_KT.view(owed.shape[0], -1)[:, : owed.shape[1]])
        return code_S

    def _add_codes_(
        self, update_BL: Tensor, codes: Tensor, *, scale_B: Tensor, bins_before: Tensor
    ) -> Tensor:
        """Add a part of a payload to the update; return the number of the last bin."""
        bins, count = self.bins, codes.numel()
        code_S = self._take_buffer("code", count, torch.int64).copy_(codes)
        if bins.dtype == torch.int16:
            code_S.bitwise_and_(0xFFFF)
        row_S = (
            torch.bitwise_and(code_S, 1, out=self._take_buffer("row", count, torch.int64))
            .cumsum_(0)
            .add_(bins_before)
        )
        bins_before = row_S[-1:].clone()
        sign_S = self._take_buffer("g", count, update_BL.dtype)
        sign_S.copy_(
            torch.bitwise_and(code_S, 2, out=self._take_buffer("i", count, torch.int64))
        ).sub_(1)
        code_S.bitwise_right_shift_(2)
        if _is_needed(code_S.device, lambda: code_S.max() == bins.nothing):
            nothing_S = code_S == bins.nothing
            code_S.masked_fill_(nothing_S, 0)
            sign_S.masked_fill_(nothing_S, 0)
        code_S.add_(row_S, alpha=bins.size)
        if bins.layers > 1:
            row_S.div_(bins.per_layer, rounding_mode="floor")
            code_S.sub_(row_S, alpha=bins.per_layer * bins.size - bins.values)
            scale_B = scale_B[row_S]
        update_BL.view(-1).index_add_(0, code_S, sign_S.mul_(scale_B), alpha=-1)
        return bins_before

    def _take_buffer(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        """Return the first `count` entries of a buffer."""
        if (name, dtype) not in self.buffers:
            self.buffers[name, dtype] = self.scratch.take(name, (self.entries,), dtype)
        return self.buffers[name, dtype][:count]

    def _cut_bins(self, name: str, block_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Return a zero-padded buffer for a block as bins, (K, T), and its part without padding."""
        layers, values = block_BL.shape
        width = -(-values // self.bins.size) * self.bins.size
        whole = self._take_buffer(name, layers * width, block_BL.dtype).view(layers, width)
        if values == width:
            return whole.view(-1, self.bins.size), whole
        whole[:, values:] = 0
        return whole.view(-1, self.bins.size), whole[:, :values]

    def _pad_bins(self, block_BL: Tensor) -> Tensor:
        """Return a block as bins, (K, T), in its own memory if no bin is short."""
        if block_BL.shape[1] % self.bins.size == 0:
            return block_BL.view(-1, self.bins.size)
        bins_KT, inner = self._cut_bins("padded", block_BL)
        inner.copy_(block_BL)
        return bins_KT

    def _by_entry(self, scale_B: Tensor, row_S: Tensor) -> Tensor:
        """Return the scale of each entry, or the only scale."""
        return (
            scale_B
            if scale_B.numel() == 1
            else scale_B.repeat_interleave(self.bins.per_layer).index_select(0, row_S)
        )


def _is_needed(device: torch.device, look: Callable[[], Tensor]) -> bool:
    """Return whether a rare case occurred; always True on other devices than a CPU.

    There, evaluating `look` would wait for the device.
    """
    return device.type != "cpu" or bool(look())


def _view_as_integers(magnitudes: Tensor) -> Tensor:
    """Return magnitudes as integers with the same order, in the same memory."""
    return magnitudes.view(_BITS[magnitudes.dtype])


@lru_cache(maxsize=16)
def _number_entries(size: int, entries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return each entry's index in its bin, shifted as in a code, and the number of its bin."""
    i = torch.arange(entries, dtype=torch.int32, device=device)
    row = torch.div(i, size, rounding_mode="floor")
    return (i - row * size).bitwise_left_shift_(2), row


def _cut_into_slices(length: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
