"""Runs the flows of an exchange over a process group.

All flows of an exchange run together. In each round their requests are packed into one buffer per
kind and dtype, so an exchange costs one collective per round, kind and dtype, however many buckets
and layers it has. Small means are piggybacked on a gather or scatter of the same round, and gathers
of equal sizes on a scatter, which saves a collective.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from accordion.base.errors import HookError
from accordion.base.link_model import WHOLE_BUCKET, CollectiveKind, CollectiveTiming
from accordion.base.wire import Flow, Gather, Mean, Request, Scatter, Scratch, as_bytes, padded_size
from accordion.compress.direct_collectives import DirectCollectives
from accordion.compress.executors import backend_name

Answers = dict[int, Any]
OnRequest = Callable[[int, Request], None]
_Kind = TypeVar("_Kind", Mean, Gather, Scatter)

PIGGYBACK_EXTRA_BYTES = 1 << 14
"""Bytes that piggybacking the means of a round may add: about what a collective costs in time."""
PIGGYBACK_MAX_BYTES = 1 << 21
"""Largest size of a round's means that are piggybacked; copying more costs more than a collective.

With two gloo workers on one host, piggybacking is about 1 ms faster at 2 MB, equal at 4 MB and
25 ms slower at 16 MB.
"""

_LENGTH_BYTES = 8
_gather_rows: Callable[..., Any] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)
"""The function's name from torch 2.13 on, or its older name."""


class Network(Protocol):
    """Answers one round of requests; all workers make the same requests in the same round."""

    def answer_requests(
        self, requests: Mapping[int, Request], round_number: int, on_request: OnRequest
    ) -> Answers:
        """Return the answers by the keys of the requests, valid until round 0 of the next exchange.

        `on_request` is called with every request that is sent.
        """


class BucketNetwork(Network, Protocol):
    """Network that also averages a whole bucket in place."""

    def all_reduce_mean_(self, buffer: Tensor) -> None:
        """Replace a contiguous buffer by its mean over the workers."""


def run_flows(flows: Sequence[Flow], network: Network, on_request: OnRequest) -> list[Any]:
    """Run one worker's flows until they hold or end; return what each returned.

    Every worker calls this with the same flows in the same order. `on_request` is called with every
    request that is sent, and with the index of its flow.
    """
    results: list[Any] = [None] * len(flows)
    requests = advance_flows(flows, dict.fromkeys(range(len(flows))), results)
    round_number = 0
    while requests:
        answers = network.answer_requests(requests, round_number, on_request)
        requests = advance_flows(flows, answers, results)
        round_number += 1
    return results


def advance_flows(
    flows: Sequence[Flow], answers: Answers, results: list[Any]
) -> dict[int, Request]:
    """Send flows their answers; return their next requests, by the index of the flow.

    What a finished flow returned is written into `results`. A flow that holds requests nothing.
    """
    requests: dict[int, Request] = {}
    for index, answer in answers.items():
        try:
            request = flows[index].send(answer)
        except StopIteration as stop:
            results[index] = stop.value
        else:
            if request is not None:
                requests[index] = request
    return requests


class GroupNetwork:
    """Network over a process group, with blocking collectives in the same order on all workers.

    With gloo on CPUs they are direct messages (`DirectCollectives`), elsewhere the backend's own.
    Without a group the process has no peers, and nothing is sent.
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
        self._message_device = _message_device(group, device)
        self._direct: DirectCollectives | None = None
        """Direct messages; None if the backend's own collectives are used."""
        if group is not None and self.world_size > 1 and _is_gloo_on_cpu(group, device):
            self._direct = DirectCollectives(group, self._scratch)
        self.seconds = 0.0
        """Seconds spent in collectives so far, waiting for slower workers included."""
        self._began_s: float | None = None
        """When the running collective began."""
        self.on_collective: Callable[[CollectiveTiming], None] | None = None
        """Called after each all-reduce, all-gather and all-to-all."""

    def answer_requests(
        self, requests: Mapping[int, Request], round_number: int, on_request: OnRequest
    ) -> Answers:
        """Implements `Network`."""
        means = _requests_of(Mean, requests)
        gathers, scatters = _requests_of(Gather, requests), _requests_of(Scatter, requests)
        has_payloads = bool(gathers or scatters)
        # A posted all-reduce is the next one, and shares no message.
        posted = None if self._direct is None else self._direct.posted_dtype
        if posted is not None and round_number == 0:
            raise HookError(
                "an earlier exchange of gradients failed between its rounds, so the workers may"
                " have different gradients; restart the workers"
            )
        are_small = are_piggybacked(means.values(), world_size=self.world_size)
        chosen = means if has_payloads and posted is None and are_small else {}
        piggybacked = {index: _as_gather(mean) for index, mean in chosen.items()}
        for index, request in {**requests, **piggybacked}.items():
            on_request(index, request)
        answers: Answers = {}
        alone = {index: mean for index, mean in means.items() if index not in piggybacked}
        dtypes = dict.fromkeys(mean.buffer.dtype for mean in alone.values())
        # The only collective of its round is followed by one of the next round.
        posts_next = len(dtypes) == 1 and not has_payloads
        for dtype in sorted(dtypes, key=lambda dtype: dtype != posted):
            of_dtype = {index: mean for index, mean in alone.items() if mean.buffer.dtype == dtype}
            answers |= self._answer_means(of_dtype, f"mean {round_number}", posts_next=posts_next)
        gathers |= piggybacked
        if scatters:
            answers |= self._answer_scatters(scatters, gathers, f"scatter {round_number}")
            gathers = {index: one for index, one in gathers.items() if not one.equal}
        if gathers:
            answers |= self._answer_gathers(gathers, f"gather {round_number}", on_request)
        return answers | {
            index: _mean_of_payloads_(answers[index], means[index].buffer) for index in piggybacked
        }

    def all_reduce_mean_(
        self, buffer: Tensor, name: str = WHOLE_BUCKET, *, next_values: int = 0
    ) -> None:
        """Replace a contiguous buffer by its mean over the workers.

        It is scaled before the sum, as DDP does. `name` identifies the collective in its timing,
        `next_values` is the number of values that the next call has at least, 0 if not known.
        """
        if self._group is None:
            return
        buffer.mul_(1.0 / self.world_size)
        if self._direct is None:
            with self._timed("all-reduce", name, buffer):
                dist.all_reduce(buffer, group=self._group)
            return
        is_posted = self._direct.posted_dtype is not None
        with self._timed("posted all-reduce" if is_posted else "all-reduce", name, buffer):
            self._direct.all_reduce_(buffer, name, next_values=next_values)

    def seconds_until_now(self) -> float:
        """Return `seconds` with the part of a collective that is running in another thread."""
        began_s = self._began_s
        return self.seconds + (0.0 if began_s is None else self._clock() - began_s)

    def broadcast_(self, tensor: Tensor) -> None:
        """Replace a tensor by that of the group's rank 0, of equal size and dtype."""
        if self._group is None:
            return
        started = self._clock()
        dist.broadcast(tensor, dist.get_global_rank(self._group, 0), group=self._group)
        self.seconds += self._clock() - started

    def pass_to_next(self, payload: Tensor) -> float:
        """Send a tensor to the next rank; return the seconds until the previous rank's arrived.

        The ranks form a ring. All call this at the same time, with tensors of equal size.
        """
        received = torch.empty_like(payload)
        started = self._clock()
        following = (self.rank + 1) % self.world_size
        sending: Any = dist.isend(payload, group=self._group, group_dst=following)
        dist.recv(received, group=self._group, group_src=(self.rank - 1) % self.world_size)
        seconds = self._clock() - started
        sending.wait()
        self.seconds += self._clock() - started
        return seconds

    def send_to_rank_0(self, tensor: Tensor) -> None:
        """Send a tensor on the CPU to the group's rank 0."""
        dist.send(tensor.to(self._message_device), group=self._group, group_dst=0)

    def receive_(self, tensor: Tensor, rank: int) -> None:
        """Fill a tensor on the CPU with one of equal size that the group's `rank` sends."""
        received = torch.empty_like(tensor, device=self._message_device)
        dist.recv(received, group=self._group, group_src=rank)
        tensor.copy_(received)

    def _answer_means(
        self, requests: Mapping[int, Mean], name: str, *, posts_next: bool
    ) -> Answers:
        buffers = [request.buffer for request in requests.values()]
        if len(buffers) == 1 and buffers[0].is_contiguous():
            packed = buffers[0].view(-1)
        else:
            packed = self._scratch.take(
                name, (sum(buffer.numel() for buffer in buffers),), buffers[0].dtype
            )
            torch.cat([buffer.reshape(-1) for buffer in buffers], out=packed)
        next_values = sum(request.next_values for request in requests.values() if posts_next)
        self.all_reduce_mean_(packed, f"{name} {packed.dtype}", next_values=next_values)
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
            [own] * self.world_size
            if equal
            else self._exchange_lengths(own, payloads[0].device, name)
        )
        longest = max(sum(map(padded_size, lengths)) for lengths in lengths_by_rank)
        if not equal:
            # Unequal sizes cost the exchange of the sizes and the padding of this worker's row.
            rest = longest - sum(map(padded_size, own)) + _LENGTH_BYTES * len(own)
            on_request(
                next(iter(requests)), Gather(torch.empty(rest, dtype=torch.uint8, device="meta"))
            )
        packed = self._scratch.take(f"{name} own", (longest,), torch.uint8)
        for payload, part in zip(payloads, _payload_slices(own), strict=True):
            packed[part].copy_(payload)
        gathered = self._scratch.take(f"{name} all", (self.world_size, longest), torch.uint8)
        self._all_gather(gathered, packed, name)
        parts = [
            [row[part] for part in _payload_slices(lengths)]
            for row, lengths in zip(gathered, lengths_by_rank, strict=True)
        ]
        return {index: [part[place] for part in parts] for place, index in enumerate(requests)}

    def _answer_scatters(
        self, scatters: Mapping[int, Scatter], gathers: Mapping[int, Gather], name: str
    ) -> Answers:
        """Answer scatters, and gathers of equal sizes, which send one payload to all workers."""
        parts = {index: request.parts for index, request in scatters.items()} | {
            index: [request.payload] * self.world_size
            for index, request in gathers.items()
            if request.equal
        }
        lengths = [own[0].numel() for own in parts.values()]
        shape = (self.world_size, sum(map(padded_size, lengths)))
        packed = self._scratch.take(f"{name} own", shape, torch.uint8)
        received = self._scratch.take(f"{name} all", shape, torch.uint8)
        slices = dict(zip(parts, _payload_slices(lengths), strict=True))
        for index, place in slices.items():
            for row, part in zip(packed, parts[index], strict=True):
                row[place].copy_(part)
        self._all_to_all(received, packed, name)
        return {index: [row[place] for row in received] for index, place in slices.items()}

    def _exchange_lengths(self, own: list[int], device: torch.device, name: str) -> list[list[int]]:
        row = torch.tensor(own, dtype=torch.int64, device=device)
        gathered = torch.empty(self.world_size, len(own), dtype=torch.int64, device=device)
        self._all_gather(gathered, row, f"{name} lengths")
        lengths: list[list[int]] = gathered.tolist()
        return lengths

    def _all_gather(self, gathered: Tensor, row: Tensor, name: str) -> None:
        """Fill `gathered`, (W, length), with the rows of all workers."""
        if self._group is None:
            gathered.copy_(row)
            return
        with self._timed("all-gather", name, row):
            if self._direct is None:
                _gather_rows(gathered.view(-1), row, group=self._group)
            else:
                self._direct.all_gather(gathered, row)

    def _all_to_all(self, received: Tensor, parts: Tensor, name: str) -> None:
        """Fill `received`, (W, length), with this worker's rows of the `parts` of all workers."""
        if self._group is None:
            received.copy_(parts)
            return
        with self._timed("all-to-all", name, parts):
            if self._direct is None:
                dist.all_to_all_single(received, parts, group=self._group)
            else:
                self._direct.all_to_all(received, list(parts))

    @contextmanager
    def _timed(self, kind: CollectiveKind, name: str, payload: Tensor) -> Iterator[None]:
        self._began_s = started = self._clock()
        yield
        seconds = self._clock() - started
        self._began_s = None
        self.seconds += seconds
        if self.on_collective is not None:
            size = payload.numel() * payload.element_size()
            self.on_collective(
                CollectiveTiming(kind=kind, name=name, payload=size, seconds=seconds)
            )


def are_piggybacked(means: Iterable[Mean], *, world_size: int) -> bool:
    """Return whether the means of a round are so small that they are sent as part of its gather.

    In a gather they cost W-1 times their bytes, in an all-reduce 2(W-1)/W times.
    """
    size = sum(mean.buffer.numel() * mean.buffer.element_size() for mean in means)
    extra = (world_size - 1) * (world_size - 2) * size // world_size
    return size <= PIGGYBACK_MAX_BYTES and extra <= PIGGYBACK_EXTRA_BYTES


def _is_gloo_on_cpu(group: dist.ProcessGroup, device: torch.device) -> bool:
    return device.type == "cpu" and backend_name(group, device) == "gloo"


def _message_device(group: dist.ProcessGroup | None, device: torch.device) -> torch.device:
    """Return where a message between two workers has to be: gloo's cannot be on a GPU, although its
    collectives can, and a send from there ends the process.
    """
    is_gloo = group is not None and backend_name(group, device) == "gloo"
    return torch.device("cpu") if is_gloo else device


def _requests_of(kind: type[_Kind], requests: Mapping[int, Request]) -> dict[int, _Kind]:
    return {index: request for index, request in requests.items() if isinstance(request, kind)}


def _as_gather(mean: Mean) -> Gather:
    return Gather(as_bytes(mean.buffer.contiguous()), equal=True)


def _mean_of_payloads_(payloads: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return the mean in the memory of the first payload; the others are scaled in theirs.

    It is summed in rank order, so that all workers get the same bits. Every payload is rounded
    after it is scaled, as before an all-reduce: with direct messages, or two workers, the mean has
    the bits of `all_reduce_mean_`.
    """
    total, *others = (payload.view(like.dtype).mul_(1.0 / len(payloads)) for payload in payloads)
    for other in others:
        total.add_(other)
    return total.view(like.shape)


def _payload_slices(lengths: Sequence[int]) -> list[slice]:
    """Return the slices that payloads of these lengths take in a row."""
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + padded_size(length))
    return [slice(start, start + length) for start, length in zip(starts, lengths, strict=False)]
