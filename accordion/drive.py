"""The only code that moves gradient bytes: runs flows over a process group, or in lockstep for
workers of one process.

All flows of a bucket run together. In every round the driver packs what they ask for into one
buffer per kind and dtype, so a bucket costs one collective per round and kind however many layers
it has. Small means ride in a gather of the same round, which saves a collective.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from accordion.wire import Flow, Gather, Mean, Request, Scratch, as_bytes, padded

Answers = dict[int, Any]
OnRequest = Callable[[int, Request], None]

RIDES_BELOW = 1 << 14
"""Bytes that a mean may cost more as part of a gather than by itself: about what one more
collective costs in time.
"""
RIDES_AT_MOST = 1 << 21
"""Bytes of all means of a round that may ride: above, copying them costs more time than the
collective that is saved.

Of two gloo workers on one host, riding is about 1 ms faster at 2 MB, equal at 4 MB and 25 ms slower
at 16 MB.
"""

_LENGTH_BYTES = 8
_gather_rows: Callable[..., Any] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)
"""Its name from torch 2.13 on, and the older one."""


class Network(Protocol):
    """Answers one round of requests; all workers ask the same round."""

    def answer(
        self, requests: Mapping[int, Request], round_number: int, on_request: OnRequest
    ) -> Answers:
        """The answers, by the keys of the requests; they stay valid until round 0 of the next
        exchange.
        """


def drive(flows: Sequence[Flow], network: Network, on_request: OnRequest) -> list[Any]:
    """Run one worker's flows to their ends; what they returned.

    Every worker calls this with the same flows in the same order. `on_request` sees every request
    as it leaves.
    """
    results: list[Any] = [None] * len(flows)
    asked = _advance(flows, dict.fromkeys(range(len(flows))), results)
    round_number = 0
    while asked:
        asked = _advance(flows, network.answer(asked, round_number, on_request), results)
        round_number += 1
    return results


def drive_lockstep(flows_by_worker: Sequence[Sequence[Flow]]) -> list[list[Any]]:
    """Run the flows of W pretended workers side by side; what they returned, by worker."""
    results: list[list[Any]] = [[None] * len(flows) for flows in flows_by_worker]
    answers: list[Answers] = [dict.fromkeys(range(len(flows))) for flows in flows_by_worker]
    while True:
        asked = [_advance(*parts) for parts in zip(flows_by_worker, answers, results, strict=True)]
        if not asked[0]:
            return results
        answers = answer_lockstep(asked)


def answer_lockstep(asked_by_worker: Sequence[Mapping[int, Request]]) -> list[Answers]:
    """One round's answers for all workers, summed in rank order."""
    answers: list[Answers] = [{} for _ in asked_by_worker]
    for index in asked_by_worker[0]:
        requests = [asked[index] for asked in asked_by_worker]
        for own in answers:
            own[index] = (
                _mean_of(requests) if isinstance(requests[0], Mean) else _payloads_of(requests)
            )
    return answers


def _mean_of(requests: Sequence[Request]) -> Tensor:
    buffers = [
        request.buffer * (1.0 / len(requests)) for request in requests if isinstance(request, Mean)
    ]
    total = buffers[0].clone()
    for buffer in buffers[1:]:
        total += buffer
    return total


def _payloads_of(requests: Sequence[Request]) -> list[Tensor]:
    return [request.payload.clone() for request in requests if isinstance(request, Gather)]


def _advance(flows: Sequence[Flow], answers: Answers, results: list[Any]) -> dict[int, Request]:
    """Send every waiting flow its answer; what they ask next, and in `results` what the finished
    ones returned.
    """
    asked: dict[int, Request] = {}
    for index, answer in answers.items():
        try:
            asked[index] = flows[index].send(answer)
        except StopIteration as stop:
            results[index] = stop.value
    return asked


class GroupNetwork:
    """Answers over a process group with blocking collectives, in an order that is the same on all
    workers.

    Without a group this process is alone, and nothing is sent.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        device: torch.device,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._group = group
        self._clock = clock
        self._scratch = Scratch(device)
        self.world_size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)
        self.seconds = 0.0
        """Spent in collectives so far, waiting for slower workers included."""

    def answer(
        self, requests: Mapping[int, Request], round_number: int, on_request: OnRequest
    ) -> Answers:
        """Implements `Network`."""
        means = {index: request for index, request in requests.items() if isinstance(request, Mean)}
        gathers = {
            index: request for index, request in requests.items() if isinstance(request, Gather)
        }
        riders = (
            {index: _as_gather(mean) for index, mean in self._riders(means).items()}
            if gathers
            else {}
        )
        for index, request in {**requests, **riders}.items():
            on_request(index, request)
        answers: Answers = {}
        alone = {index: mean for index, mean in means.items() if index not in riders}
        for dtype in dict.fromkeys(mean.buffer.dtype for mean in alone.values()):
            of_dtype = {index: mean for index, mean in alone.items() if mean.buffer.dtype == dtype}
            answers |= self._answer_means(of_dtype, f"mean {round_number}")
        if gathers:
            answers |= self._answer_gathers(
                {**gathers, **riders}, f"gather {round_number}", on_request
            )
        return answers | {
            index: _mean_of_payloads_(answers[index], means[index].buffer) for index in riders
        }

    def mean_(self, buffer: Tensor) -> None:
        """Replace a contiguous buffer by its mean over the workers, scaled before the sum as DDP
        does.
        """
        if self._group is None:
            return
        buffer.mul_(1.0 / self.world_size)
        started = self._clock()
        dist.all_reduce(buffer, group=self._group)
        self.seconds += self._clock() - started

    def broadcast_(self, tensor: Tensor) -> None:
        """Replace a tensor by the group's rank 0's, of equal size and dtype."""
        if self._group is None:
            return
        started = self._clock()
        dist.broadcast(tensor, dist.get_global_rank(self._group, 0), group=self._group)
        self.seconds += self._clock() - started

    def send_to_first(self, tensor: Tensor) -> None:
        """Send a tensor to rank 0 of the group."""
        dist.send(tensor, group=self._group, group_dst=0)

    def receive_(self, tensor: Tensor, rank: int) -> None:
        """Fill a tensor with the one of equal size that the group's `rank` sends."""
        dist.recv(tensor, group=self._group, group_src=rank)

    def _riders(self, means: Mapping[int, Mean]) -> dict[int, Mean]:
        """Small means that cost no more as part of a gather: W-1 times their bytes, 2(W-1)/W times
        by themselves.
        """
        size = sum(mean.buffer.numel() * mean.buffer.element_size() for mean in means.values())
        extra = (self.world_size - 1) * (self.world_size - 2) * size // self.world_size
        return dict(means) if size <= RIDES_AT_MOST and extra <= RIDES_BELOW else {}

    def _answer_means(self, requests: Mapping[int, Mean], name: str) -> Answers:
        buffers = [request.buffer for request in requests.values()]
        if len(buffers) == 1 and buffers[0].is_contiguous():
            packed = buffers[0].view(-1)
        else:
            packed = self._scratch.take(
                name, (sum(buffer.numel() for buffer in buffers),), buffers[0].dtype
            )
            torch.cat([buffer.reshape(-1) for buffer in buffers], out=packed)
        self.mean_(packed)
        parts = torch.split(packed, [buffer.numel() for buffer in buffers])
        return {
            index: part.view(b.shape)
            for index, part, b in zip(requests, parts, buffers, strict=True)
        }

    def _answer_gathers(
        self, requests: Mapping[int, Gather], name: str, on_request: OnRequest
    ) -> Answers:
        payloads = [request.payload for request in requests.values()]
        own = [payload.numel() for payload in payloads]
        equal = all(request.equal for request in requests.values())
        lengths_by_rank = (
            [own] * self.world_size if equal else self._exchange_lengths(own, payloads[0].device)
        )
        longest = max(sum(map(padded, lengths)) for lengths in lengths_by_rank)
        if not equal:
            # What only the difference in sizes costs: the sizes themselves, and this worker's row
            # filled up.
            rest = longest - sum(map(padded, own)) + _LENGTH_BYTES * len(own)
            on_request(
                next(iter(requests)), Gather(torch.empty(rest, dtype=torch.uint8, device="meta"))
            )
        packed = self._scratch.take(f"{name} own", (longest,), torch.uint8)
        for payload, place in zip(payloads, _places(own), strict=True):
            packed[place].copy_(payload)
        gathered = self._scratch.take(f"{name} all", (self.world_size, longest), torch.uint8)
        self._all_gather(gathered, packed)
        parts = [
            [row[place] for place in _places(lengths)]
            for row, lengths in zip(gathered, lengths_by_rank, strict=True)
        ]
        return {index: [part[place] for part in parts] for place, index in enumerate(requests)}

    def _exchange_lengths(self, own: list[int], device: torch.device) -> list[list[int]]:
        row = torch.tensor(own, dtype=torch.int64, device=device)
        gathered = torch.empty(self.world_size, len(own), dtype=torch.int64, device=device)
        self._all_gather(gathered, row)
        lengths: list[list[int]] = gathered.tolist()
        return lengths

    def _all_gather(self, gathered: Tensor, row: Tensor) -> None:
        """Fill (W, length) with the rows of all workers."""
        if self._group is None:
            gathered.copy_(row)
            return
        started = self._clock()
        _gather_rows(gathered.view(-1), row, group=self._group)
        self.seconds += self._clock() - started


def _as_gather(mean: Mean) -> Gather:
    return Gather(as_bytes(mean.buffer.contiguous()), equal=True)


def _mean_of_payloads_(payloads: Sequence[Tensor], like: Tensor) -> Tensor:
    """Summed in rank order, so that all workers get the same bits; lies in the memory of
    the first.
    """
    total = payloads[0].view(like.dtype).mul_(1.0 / len(payloads))
    for payload in payloads[1:]:
        total.add_(payload.view(like.dtype), alpha=1.0 / len(payloads))
    return total.view(like.shape)


def _places(lengths: Sequence[int]) -> list[slice]:
    """Where payloads of these lengths lie in a row."""
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + padded(length))
    return [slice(start, start + length) for start, length in zip(starts, lengths, strict=False)]
