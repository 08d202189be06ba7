"""The only code that moves gradient bytes: runs flows over a process group, or in lockstep for workers of one process.

All flows of a bucket run together. In every round the driver packs what they ask for into one buffer per kind and
dtype, so a bucket costs one collective per round and kind however many layers it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from accordion.wire import Flow, Gather, Mean, Request

Result = tuple[Tensor, Tensor]
Answers = dict[int, Any]
OnRequest = Callable[[int, Request], None]


class Network(Protocol):
    """Answers one round of requests; all workers ask the same round."""

    def answer(self, requests: Mapping[int, Request]) -> Answers:
        """The answers, by the keys of the requests."""


def drive(flows: Sequence[Flow], network: Network, on_request: OnRequest) -> list[Result]:
    """Run one worker's flows to their ends.

    Every worker calls this with the same flows in the same order. `on_request` sees every request before it leaves.
    """
    results: list[Result | None] = [None] * len(flows)
    asked = _advance(flows, dict.fromkeys(range(len(flows))), results)
    while asked:
        for index, request in asked.items():
            on_request(index, request)
        asked = _advance(flows, network.answer(asked), results)
    return [result for result in results if result is not None]


def drive_lockstep(flows_by_worker: Sequence[Sequence[Flow]]) -> list[list[Result]]:
    """Run the flows of W pretended workers side by side; results by worker."""
    results: list[list[Result | None]] = [[None] * len(flows) for flows in flows_by_worker]
    answers: list[Answers] = [dict.fromkeys(range(len(flows))) for flows in flows_by_worker]
    while True:
        asked = [_advance(*parts) for parts in zip(flows_by_worker, answers, results, strict=True)]
        if not asked[0]:
            return [[result for result in own if result is not None] for own in results]
        answers = answer_lockstep(asked)


def answer_lockstep(asked_by_worker: Sequence[Mapping[int, Request]]) -> list[Answers]:
    """One round's answers for all workers, summed in rank order."""
    answers: list[Answers] = [{} for _ in asked_by_worker]
    for index in asked_by_worker[0]:
        requests = [asked[index] for asked in asked_by_worker]
        for own in answers:
            own[index] = _mean_of(requests) if isinstance(requests[0], Mean) else _payloads_of(requests)
    return answers


def _mean_of(requests: Sequence[Request]) -> Tensor:
    buffers = [request.buffer * (1.0 / len(requests)) for request in requests if isinstance(request, Mean)]
    total = buffers[0].clone()
    for buffer in buffers[1:]:
        total += buffer
    return total


def _payloads_of(requests: Sequence[Request]) -> list[Tensor]:
    return [request.payload.clone() for request in requests if isinstance(request, Gather)]


def _advance(flows: Sequence[Flow], answers: Answers, results: list[Result | None]) -> dict[int, Request]:
    """Send every waiting flow its answer; what they ask next, and in `results` what the finished ones returned."""
    asked: dict[int, Request] = {}
    for index, answer in answers.items():
        try:
            asked[index] = flows[index].send(answer)
        except StopIteration as stop:
            results[index] = stop.value
    return asked


class GroupNetwork:
    """Answers over a process group with blocking collectives, in an order that is the same on all workers."""

    def __init__(self, group: dist.ProcessGroup, clock: Callable[[], float] = time.perf_counter) -> None:
        self._group = group
        self._clock = clock
        self.world_size = dist.get_world_size(group)
        self.seconds = 0.0
        """Spent in collectives so far, waiting for slower workers included."""

    def answer(self, requests: Mapping[int, Request]) -> Answers:
        """Implements `Network`."""
        answers: Answers = {}
        means = {index: request for index, request in requests.items() if isinstance(request, Mean)}
        for dtype in dict.fromkeys(request.buffer.dtype for request in means.values()):
            answers |= self._answer_means({i: r for i, r in means.items() if r.buffer.dtype == dtype})
        gathers = {index: request for index, request in requests.items() if isinstance(request, Gather)}
        if gathers:
            answers |= self._answer_gathers(gathers)
        return answers

    def mean_(self, buffer: Tensor) -> None:
        """Replace a contiguous buffer by its mean over the workers, scaled before the sum as DDP does."""
        buffer.mul_(1.0 / self.world_size)
        started = self._clock()
        dist.all_reduce(buffer, group=self._group)
        self.seconds += self._clock() - started

    def _answer_means(self, requests: Mapping[int, Mean]) -> Answers:
        buffers = [request.buffer for request in requests.values()]
        packed = buffers[0].contiguous().view(-1) if len(buffers) == 1 else torch.cat([b.reshape(-1) for b in buffers])
        self.mean_(packed)
        parts = torch.split(packed, [buffer.numel() for buffer in buffers])
        return {index: part.view(b.shape) for index, part, b in zip(requests, parts, buffers, strict=True)}

    def _answer_gathers(self, requests: Mapping[int, Gather]) -> Answers:
        payloads = [request.payload for request in requests.values()]
        own = [payload.numel() for payload in payloads]
        equal = all(request.equal for request in requests.values())
        lengths_by_rank = [own] * self.world_size if equal else self._exchange_lengths(own, payloads[0].device)
        packed = torch.cat(payloads)
        longest = max(sum(lengths) for lengths in lengths_by_rank)
        packed = torch.nn.functional.pad(packed, (0, longest - packed.numel()))
        gathered = self._all_gather(packed)
        split = [
            torch.split(row[: sum(lengths)], lengths) for row, lengths in zip(gathered, lengths_by_rank, strict=True)
        ]
        return {index: [parts[place] for parts in split] for place, index in enumerate(requests)}

    def _exchange_lengths(self, own: list[int], device: torch.device) -> list[list[int]]:
        lengths: list[list[int]] = self._all_gather(torch.tensor(own, dtype=torch.int64, device=device)).tolist()
        return lengths

    def _all_gather(self, row: Tensor) -> Tensor:
        """The rows of all workers, (W, length)."""
        gathered = torch.empty(self.world_size, row.numel(), dtype=row.dtype, device=row.device)
        started = self._clock()
        dist.all_gather(list(gathered.unbind(0)), row, group=self._group)
        self.seconds += self._clock() - started
        return gathered
