"""W pretended workers in one process, exchanging gradients in lockstep, and strategies for what
they exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from typing import Any

import torch
from hypothesis import strategies as st

from accordion.base.messages import LayerInfo, Level
from accordion.base.wire import Flow, Gather, Mean, Request, Scatter
from accordion.compress.compression_engine import Engine
from accordion.compress.exchange import Answers, advance_flows
from accordion.compress.layer_stacks import Layer, Stack
from accordion.compressors import COMPRESSORS, ladder_of, level_of

Gradients = Mapping[str, torch.Tensor]

METHODS = sorted(COMPRESSORS)
FEEDBACK_METHODS = [name for name in METHODS if COMPRESSORS[name].feedback]
_OTHER = {
    "rank": 2,
    "refresh_every": 2,
    "density": 0.01,
    "bits": 3,
    "bucket": 100,
    "bin_conv": 80,
    "bin_other": 50,
}
"""Second value of an option in numbers; another option keeps its default."""
LEVELS = [level for name in METHODS for level in ladder_of(name)] + [
    level_of(name, {**row.low, option: choice}, name=f"{option}={choice}")
    for name, row in COMPRESSORS.items()
    for option, known in row.options.items()
    for choice in known.choices
    if choice != known.default
]
"""Both rungs of every row, and every variant that an option of it offers."""
LOSSLESS_LEVELS = [
    level
    for level in LEVELS
    if COMPRESSORS[level.method].feedback or COMPRESSORS[level.method].exact
]
OPTION_LEVELS = [
    level_of(name, dict(zip(row.options, values, strict=True)), name="-".join(map(str, values)))
    for name, row in COMPRESSORS.items()
    for values in product(
        *(
            known.choices
            or dict.fromkeys(
                [row.low.get(option, known.default), _OTHER.get(option, known.default)]
            )
            for option, known in row.options.items()
        )
    )
]
"""Every combination of two values of a method's options, or of all choices."""
SHAPES = st.lists(st.integers(1, 9), min_size=2, max_size=4).map(tuple)
WORLD_SIZES = st.integers(1, 4)


def run_flows_lockstep(flows_by_worker: Sequence[Sequence[Flow]]) -> list[list[Any]]:
    """Run the flows of W pretended workers side by side; return what they returned, by worker."""
    results: list[list[Any]] = [[None] * len(flows) for flows in flows_by_worker]
    answers: list[Answers] = [dict.fromkeys(range(len(flows))) for flows in flows_by_worker]
    while True:
        asked = [
            advance_flows(*parts) for parts in zip(flows_by_worker, answers, results, strict=True)
        ]
        if not asked[0]:
            return results
        answers = answer_lockstep(asked)


def answer_lockstep(asked_by_worker: Sequence[Mapping[int, Request]]) -> list[Answers]:
    """Return one round's answers for all workers, summed in rank order."""
    answers: list[Answers] = [{} for _ in asked_by_worker]
    for index in asked_by_worker[0]:
        requests = [asked[index] for asked in asked_by_worker]
        for rank, own in enumerate(answers):
            own[index] = (
                _mean_of(requests)
                if isinstance(requests[0], Mean)
                else _payloads_for(rank, requests)
            )
    return answers


def _mean_of(requests: Sequence[Request]) -> torch.Tensor:
    buffers = [
        request.buffer * (1.0 / len(requests)) for request in requests if isinstance(request, Mean)
    ]
    total = buffers[0].clone()
    for buffer in buffers[1:]:
        total += buffer
    return total


def _payloads_for(rank: int, requests: Sequence[Request]) -> list[torch.Tensor]:
    return [
        (request.parts[rank] if isinstance(request, Scatter) else request.payload).clone()
        for request in requests
        if isinstance(request, Gather | Scatter)
    ]


class Cluster:
    """Engines of W workers; one call to `step` is one training step of all of them."""

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], world_size: int, seed: int = 0
    ) -> None:
        layers = [
            LayerInfo(name=name, shape=shape) for name, shape in shapes.items() if len(shape) > 1
        ]
        self._layers = [layer.name for layer in layers]
        self.engines = [
            Engine(layers, seed=seed, world_size=world_size, rank=rank)
            for rank in range(world_size)
        ]

    def switch(self, level: Level) -> None:
        for engine in self.engines:
            engine.plan = dict.fromkeys(self._layers, level)

    def as_worker(self, rank: int) -> AbstractContextManager[None]:
        """Context in which a worker computes."""
        return nullcontext()

    def exchange(
        self, gradients: Sequence[Gradients], *, is_skipped: bool = False
    ) -> list[dict[str, torch.Tensor]]:
        """Average by flows; the gradients given stay as they are. Nothing is committed."""
        buckets = [[Layer(name=n, gradient=g.clone()) for n, g in own.items()] for own in gradients]
        stacks = []
        for rank, (engine, bucket) in enumerate(zip(self.engines, buckets, strict=True)):
            with self.as_worker(rank):
                engine.observe_gradients(bucket)
                stacks.append(engine.build_stacks(bucket))
        run_flows_lockstep(
            [[self._run_flow(rank, stack) for stack in own] for rank, own in enumerate(stacks)]
        )
        for rank, (engine, own) in enumerate(zip(self.engines, stacks, strict=True)):
            with self.as_worker(rank):
                engine.hold_updates(own)
                engine.write_updates(is_skipped=torch.tensor(is_skipped))
        return [{layer.name: layer.gradient for layer in bucket} for bucket in buckets]

    def step(self, gradients: Sequence[Gradients]) -> list[dict[str, torch.Tensor]]:
        updates = self.exchange(gradients)
        for engine in self.engines:
            engine.commit_step()
        return updates

    def _run_flow(self, rank: int, stack: Stack) -> Flow:
        answer = None
        while True:
            with self.as_worker(rank):
                try:
                    request = stack.flow.send(answer)
                except StopIteration as stop:
                    return stop.value
            if request is not None:
                self.engines[rank].ledger.count(stack.names, request, stack.level.method)
            answer = yield request

    def mean_residual(self, layer: str, like: torch.Tensor) -> torch.Tensor:
        owed = [engine.feedback.get(layer) for engine in self.engines]
        return sum((r.view_as(like) for r in owed if r is not None), torch.zeros_like(like)) / len(
            self.engines
        )


class UnlikeThreads(Cluster):
    """Workers that compute on one and two threads by turns."""

    @contextmanager
    def as_worker(self, rank: int) -> Iterator[None]:
        """Implements `Cluster`."""
        before = torch.get_num_threads()
        torch.set_num_threads(1 + rank % 2)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def draw_gradients(
    shapes: Mapping[str, tuple[int, ...]], world_size: int, seed: int
) -> list[dict[str, torch.Tensor]]:
    draw, device = torch.Generator("cpu").manual_seed(seed), torch.get_default_device()
    return [
        {
            n: torch.randn(shape, generator=draw, device="cpu").to(device)
            for n, shape in shapes.items()
        }
        for _ in range(world_size)
    ]


def mean_of(gradients: Sequence[Gradients], layer: str) -> torch.Tensor:
    return torch.stack([own[layer] for own in gradients]).mean(0)


def rank_level(rank: int) -> Level:
    return level_of("powersgd", {"rank": rank}, name=f"rank={rank}")


def closeness(*tensors: torch.Tensor) -> float:
    """A few ulp of the largest term: flows and sums round in fp32, in different orders."""
    largest = max((t.abs().max().item() for t in tensors if t.numel()), default=0.0)
    return 64 * torch.finfo(torch.float32).eps * max(largest, 1e-30) * 16
