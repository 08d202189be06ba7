"""Top-k: the k entries of largest magnitude of each layer, as (value, 32-bit position) pairs.

Exactly k entries of a layer are sent, and no other entry has a larger magnitude; ties are broken
arbitrarily. This holds for both ways to select:

- `exact`: `torch.topk` over the magnitudes of the whole layer;
- `sampled`: a threshold that slightly more than k entries exceed is estimated from a sample, these
  candidates are collected in one pass over the layer, and the k largest of them are selected. If
  the estimate is too high (about once in ten thousand layers), `exact` selects the layer. If there
  are ties, entries equal to the threshold are added.

On other devices than a CPU, `exact` selects every layer, because the number of candidates would
have to be waited for. Residuals are exact even with 16-bit values, because they contain the
rounding error. A stack may have up to 2**31 entries.

B layers of L entries, K sent of each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from accordion.base.wire import Context, Flow, Gather, Scratch
from accordion.compressors.stratified_sampling import draw_positions

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
_SAMPLED_FROM = 1 << 15
"""Size from which a layer is sampled, in entries; exact selection is faster for smaller ones."""
_SAMPLE_SIZE = 1 << 16
"""Entries in a sample; takes 0.5 ms, and yields 16 % more candidates than k at 1 % density."""
_DEVIATIONS = 4.0
"""Standard deviations by which the threshold's rank in the sample exceeds the expected one."""
_BLOCK = 1 << 15
"""Values compared at once; they and the result fit into a core's second-level cache."""
_SPAN = 1 << 18
"""Values whose marks, one byte each, are searched at once."""


def topk_flow(owed_BL: Tensor, context: Context) -> Flow:
    """Send the K largest entries of each layer; the update is their mean over the workers."""
    if owed_BL.numel() == 0:
        return
    layers, length = owed_BL.shape
    size = layers * max(1, round(float(context.options["density"]) * length))
    dtype = _DTYPES[str(context.options["values"])]
    payload = context.scratch.take("payload", ((4 + dtype.itemsize) * size,), torch.uint8)
    positions, values = payload[: 4 * size].view(torch.int32), payload[4 * size :].view(dtype)
    _select_positions(owed_BL, positions.view(layers, -1), context)
    _take_off(owed_BL, positions, values, scratch=context.shared)
    payloads = context.scratch.keep((yield Gather(payload, equal=True)))
    yield None  # hold
    context.update.zero_()
    for received in payloads:
        values = _as_dtype(received[4 * size :].view(dtype), owed_BL.dtype, context.shared)
        positions = received[: 4 * size].view(torch.int32)
        context.update.view(-1).index_add_(0, positions, values, alpha=1.0 / len(payloads))


def _take_off(owed_BL: Tensor, positions: Tensor, sent: Tensor, *, scratch: Scratch) -> None:
    """Write the values to send, and subtract them, as rounded, from `owed_BL`."""
    owed = owed_BL.view(-1)
    values = torch.index_select(
        owed, 0, positions, out=scratch.take("values", positions.shape, owed.dtype)
    )
    limit = torch.finfo(sent.dtype).max
    sent.copy_(values.clamp_(-limit, limit))
    owed.index_add_(0, positions, _as_dtype(sent, owed.dtype, scratch), alpha=-1)


def _as_dtype(values: Tensor, dtype: torch.dtype, scratch: Scratch) -> Tensor:
    return (
        values
        if values.dtype == dtype
        else scratch.take("values", values.shape, dtype).copy_(values)
    )


def _select_positions(owed_BL: Tensor, positions_BK: Tensor, context: Context) -> None:
    """Write the positions of each layer's K largest entries, counted over the stack."""
    layers, length = owed_BL.shape
    sample_is_too_small = _rank_in_sample(length, positions_BK.shape[1]) >= _sample_size(length)
    if (
        context.options["select"] == "exact"
        or not owed_BL.is_cpu
        or length < _SAMPLED_FROM
        or sample_is_too_small
    ):
        _select_exactly(owed_BL, positions_BK, context)
    else:
        draw = context.draw("own")
        for owed_L, positions_K in zip(owed_BL, positions_BK, strict=True):
            if not _select_sampled(owed_L, positions_K, draw=draw, scratch=context.shared):
                _select_exactly(owed_L.unsqueeze(0), positions_K.unsqueeze(0), context)
    if layers > 1:
        starts_B1 = (
            torch.arange(layers, dtype=torch.int32, device=owed_BL.device).mul_(length).unsqueeze(1)
        )
        positions_BK.add_(starts_B1)


def _select_exactly(owed_BL: Tensor, positions_BK: Tensor, context: Context) -> None:
    """Select from whole layers."""
    room = context.shared.take("magnitudes", owed_BL.shape, owed_BL.dtype)
    magnitudes_BL = torch.abs(owed_BL, out=room)
    positions_BK.copy_(_find_largest(magnitudes_BL, positions_BK.shape[1], context.shared).indices)


def _sample_size(length: int) -> int:
    return min(_SAMPLE_SIZE, length // 8)


def _rank_in_sample(length: int, count: int) -> int:
    """Return the rank of the sampled magnitude that almost surely K of L entries exceed."""
    expected = _sample_size(length) * count / length
    return math.ceil(expected + _DEVIATIONS * math.sqrt(expected) + _DEVIATIONS)


def _select_sampled(
    owed_L: Tensor, selected_K: Tensor, *, draw: torch.Generator, scratch: Scratch
) -> bool:
    """Select from the entries above a sampled threshold; False if they are too few or too many."""
    length, count = owed_L.numel(), selected_K.numel()
    size, rank = _sample_size(length), _rank_in_sample(length, count)
    places = draw_positions((1, length, size), draw, scratch)
    sample = torch.index_select(
        owed_L, 0, places, out=scratch.take("sample", (size,), owed_L.dtype)
    ).abs_()
    threshold = float(_find_largest(sample, rank, scratch).values.min())
    # The margin above the rank equals that of the rank above the count.
    room = math.ceil((rank + _DEVIATIONS * (math.sqrt(rank) + 1)) * length / size)
    candidates = scratch.take("candidates", (room,), torch.int32)
    _reserve_buffers(owed_L.dtype, room, scratch)
    found = _collect_beyond(owed_L, threshold, candidates, scratch=scratch)
    if found > room:
        return False
    if found < count:
        selected_K[:found].copy_(candidates[:found])
        return _collect_equal(owed_L, threshold, selected_K[found:], scratch=scratch)
    _select_among(owed_L, candidates[:found], selected_K, scratch=scratch)
    return True


def _reserve_buffers(dtype: torch.dtype, room: int, scratch: Scratch) -> None:
    """Allocate the buffers of `_select_among` for the largest possible number of candidates."""
    for name, kind in (("values", dtype), ("marks among", torch.bool), ("places", torch.int64)):
        scratch.take(name, (room,), kind)


def _find_largest(magnitudes: Tensor, count: int, scratch: Scratch) -> torch.return_types.topk:
    shape = (*magnitudes.shape[:-1], count)
    values, indices = (
        scratch.take("largest", shape, magnitudes.dtype),
        scratch.take("largest", shape, torch.int64),
    )
    return torch.topk(magnitudes, count, sorted=False, out=(values, indices))


def _collect_beyond(
    owed_L: Tensor, threshold: float, candidates: Tensor, *, scratch: Scratch
) -> int:
    """Write the ascending positions of magnitudes above the threshold; return their number.

    If they do not fit, the number is larger than the length of `candidates`.
    """
    shrunk = scratch.take("shrunk", (min(_BLOCK, owed_L.numel()),), owed_L.dtype)
    found = 0
    for start in range(0, owed_L.numel(), _SPAN):
        span = owed_L[start : start + _SPAN]
        marks = scratch.take("marks", (-(-span.numel() // 8) * 8,), torch.bool)
        marks[span.numel() :] = False
        parts, marked_parts = torch.split(span, _BLOCK), torch.split(marks[: span.numel()], _BLOCK)
        for part, marked in zip(parts, marked_parts, strict=True):
            # A comparison that returns bools takes three times as long as these two calls.
            marked.copy_(torch.hardshrink(part, threshold, out=shrunk[: part.numel()]))
        places = _places_of_marks(marks, candidates.numel(), scratch)
        if places is None or found + places.numel() > candidates.numel():
            return candidates.numel() + 1
        candidates[found : found + places.numel()].copy_(places.add_(start))
        found += places.numel()
    return found


def _places_of_marks(marks: Tensor, most: int, scratch: Scratch) -> Tensor | None:
    """Return the ascending positions of True marks, int64; None if there are more than `most`.

    Groups of eight are searched first, as one number each, because few marks are True.
    """
    words = marks.view(torch.int64)
    most_groups, most = min(most, words.numel()), min(most, marks.numel())
    groups = _find_nonzero(words, scratch.take("groups", (words.numel(), 1), torch.int64))
    if groups.numel() > most_groups:
        return None
    kept = scratch.take("kept", (most_groups,), torch.int64)[: groups.numel()]
    torch.index_select(words, 0, groups, out=kept)
    inner = _find_nonzero(kept.view(torch.bool), scratch.take("inner", (most, 1), torch.int64))
    if inner.numel() > most:
        return None
    which = scratch.take("which", (most,), torch.int64)[: inner.numel()]
    torch.bitwise_right_shift(inner, 3, out=which)
    places = scratch.take("places of marks", (most,), torch.int64)[: inner.numel()]
    torch.index_select(groups, 0, which, out=places)
    return places.mul_(8).add_(inner.bitwise_and_(7))


def _find_nonzero(values: Tensor, memory: Tensor) -> Tensor:
    """Return `values.nonzero()`, flat, in `memory`, (most, 1), which grows if it is too small."""
    return torch.nonzero(values, out=memory.resize_(0, 1)).view(-1)


def _collect_equal(owed_L: Tensor, magnitude: float, selected: Tensor, *, scratch: Scratch) -> bool:
    """Fill `selected` with positions of this magnitude; return False if there are too few."""
    found = 0
    size = min(_BLOCK, owed_L.numel())
    shrunk, marks = (
        scratch.take("shrunk", (size,), owed_L.dtype),
        scratch.take("marks", (size,), torch.bool),
    )
    for start in range(0, owed_L.numel(), size):
        part = owed_L[start : start + size]
        equal = torch.eq(
            torch.abs(part, out=shrunk[: part.numel()]), magnitude, out=marks[: part.numel()]
        )
        places = _find_nonzero(equal, scratch.take("equal", (size, 1), torch.int64))[
            : selected.numel() - found
        ]
        selected[found : found + places.numel()].copy_(places.add_(start))
        found += places.numel()
        if found == selected.numel():
            return True
    return False


def _select_among(
    owed_L: Tensor, candidates: Tensor, selected_K: Tensor, *, scratch: Scratch
) -> None:
    """Write the positions of the K largest candidates in ascending order."""
    found, count = candidates.numel(), selected_K.numel()
    magnitudes = torch.index_select(
        owed_L, 0, candidates, out=scratch.take("values", (found,), owed_L.dtype)
    ).abs_()
    magnitudes.nan_to_num_(nan=math.inf, posinf=math.inf)
    least = _find_largest(magnitudes, count, scratch).values.min()
    marks = torch.ge(magnitudes, least, out=scratch.take("marks among", (found,), torch.bool))
    places = _find_nonzero(marks, scratch.take("places", (found, 1), torch.int64))
    surplus = places.numel() - count
    if surplus > 0:
        equal = torch.eq(magnitudes, least, out=scratch.take("equal among", (found,), torch.bool))
        marks[_find_nonzero(equal, scratch.take("equal", (found, 1), torch.int64))[:surplus]] = (
            False
        )
        places = _find_nonzero(marks, scratch.take("places", (found, 1), torch.int64))
    torch.index_select(candidates, 0, places, out=selected_K)
