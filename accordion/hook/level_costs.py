"""Cost of compression levels that are not in force: encoding is timed, and payloads are counted.

A level's flows run on random gradients of the job's own shapes, over a network that answers at
once, as if every worker had sent what this one sends. What the answers would take on the real
network follows from `LinkModel`.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from accordion.base.link_model import WHOLE_BUCKET, Collective, CollectiveKind
from accordion.base.messages import LayerInfo, Level
from accordion.base.wire import Gather, Mean, Request, Scatter
from accordion.compress.compression_engine import Engine
from accordion.compress.exchange import Answers, GroupNetwork, OnRequest, are_piggybacked
from accordion.compress.layer_stacks import Bucket, Layer
from accordion.compress.ledger import OVERHEAD, Ledger
from accordion.compress.statistics import GradientSums
from accordion.hook.ddp_buckets import as_real
from accordion.hook.exchange_plan import LevelCost
from accordion.hook.parameter_changes import group_parameters

MAX_SECONDS = 10.0
"""Default time limit of `measure_levels`."""
_REPEATS = 2
"""Timed runs after the first one, which allocates buffers; the shortest counts."""


class EchoNetwork:
    """Network that answers at once, as if all workers had sent what this one sends."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.payloads: defaultdict[Collective, float] = defaultdict(float)
        """Bytes passed so far, by the collective's kind and name."""
        self._posts_next = False
        """Whether the receives of the next round's mean are posted in this one."""

    def answer_requests(
        self, requests: Mapping[int, Request], round_number: int, on_request: OnRequest
    ) -> Answers:
        """Implements `Network`."""
        answers: Answers = {}
        means = [request for request in requests.values() if isinstance(request, Mean)]
        is_only = len(means) == len(requests)
        are_alone = is_only or self._posts_next
        are_alone |= not are_piggybacked(means, world_size=self.world_size)
        kind: CollectiveKind = "posted all-reduce" if self._posts_next else "all-reduce"
        self._posts_next = is_only and any(mean.next_values for mean in means)
        has_scatters = any(isinstance(request, Scatter) for request in requests.values())
        for index, request in requests.items():
            on_request(index, request)
            match request:
                case Mean():
                    if are_alone:
                        name = f"mean {round_number} {request.buffer.dtype}"
                        self.payloads[kind, name] += request.payload_bytes
                    else:
                        self._gather(request.payload_bytes, round_number, in_scatter=has_scatters)
                    answers[index] = request.buffer
                case Gather():
                    in_scatter = has_scatters and request.equal
                    self._gather(request.payload_bytes, round_number, in_scatter=in_scatter)
                    answers[index] = [request.payload.clone() for _ in range(self.world_size)]
                case Scatter():
                    self.payloads["all-to-all", f"scatter {round_number}"] += request.payload_bytes
                    answers[index] = [request.parts[0].clone() for _ in range(self.world_size)]
        return answers

    def _gather(self, payload: float, round_number: int, *, in_scatter: bool) -> None:
        """Count a payload for all workers, which may be piggybacked on the scatters of a round."""
        if in_scatter:
            self.payloads["all-to-all", f"scatter {round_number}"] += self.world_size * payload
        else:
            self.payloads["all-gather", f"gather {round_number}"] += payload

    def all_reduce_mean_(self, buffer: Tensor) -> None:
        """Count a buffer; its mean is the buffer itself."""
        size = buffer.numel() * buffer.element_size()
        self.payloads["all-reduce", WHOLE_BUCKET] += size


@dataclass(slots=True)
class _Budget:
    """Time that measuring may take."""

    clock: Callable[[], float]
    seconds: float
    ends_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.ends_s = self.clock() + self.seconds

    @property
    def is_spent(self) -> bool:
        return self.clock() >= self.ends_s


def measure_levels(
    buckets: Sequence[Sequence[Layer]],
    plans: Mapping[str, Mapping[str, Level]],
    *,
    world_size: int,
    clock: Callable[[], float] = time.perf_counter,
    max_seconds: float = MAX_SECONDS,
) -> dict[str, list[LevelCost]]:
    """Return the cost of every bucket at every plan; no gradient and no state is changed.

    Args:
        buckets: layers of each bucket of a step, in the order of the exchanges.
        plans: level by decided layer, by the plan's name.
        world_size: number of workers.
        clock: returns seconds.
        max_seconds: time limit; buckets beyond it cost as much per value as those before.
    """
    budget = _Budget(clock, max_seconds)
    costs: dict[str, list[LevelCost]] = {name: [] for name in plans}
    for place, layers in enumerate(buckets):
        if place and budget.is_spent:
            rest = [sum(layer.gradient.numel() for layer in group) for group in buckets]
            return {name: _extrapolate(known, rest) for name, known in costs.items()}
        for name, plan in plans.items():
            costs[name].append(_measure_bucket(layers, plan, world_size=world_size, clock=clock))
    return costs


def count_exchange(
    parameters: Mapping[str, Tensor],
    plan: Mapping[str, Level],
    *,
    world_size: int,
    device: torch.device,
) -> Ledger:
    """Return the bytes of one exchange of gradients, or of changes of parameters, counted by the
    ledger of a worker that exchanges bucket by bucket, with its signals. One bucket at a time is
    drawn at random, so that a model which fits into no single worker is counted too.

    Args:
        parameters: trainable parameters by name, in the order of the model. Only their shapes and
            dtypes are read, so they may be on the device `meta`.
        plan: level by decided layer.
        world_size: number of workers.
        device: where to draw the buckets.
    """
    ledger = Ledger(world_size)
    # Without a group, all workers seem to send what this one sends.
    network = GroupNetwork(None, device)
    network.world_size = world_size
    values = {name: as_real(one.detach()) for name, one in parameters.items()}
    *others, last = group_parameters(values)
    for group in (*others, last):
        engine = _create_engine(group, plan, world_size=world_size)
        engine.ledger = ledger
        layers = [Layer(name=name, gradient=value) for name, value in group.items()]
        raised = frozenset if group is last else None
        engine.exchange([_draw_bucket(layers, device=device)], network, raised=raised)
    return ledger


def count_window(layers: Sequence[LayerInfo], *, world_size: int) -> int:
    """Return the wire bytes with which workers average the sums of a window."""
    shapes = {layer.name: torch.Size(layer.shape) for layer in layers}
    summary = GradientSums(shapes, seed=0).summary(torch.device("cpu"))
    ledger = Ledger(world_size)
    ledger.count((OVERHEAD,), Mean(summary), OVERHEAD)
    return ledger.control_wire


def share_waits(
    waits: Mapping[str, float], layers: Sequence[LayerInfo]
) -> dict[str, dict[str, float]]:
    """Return the seconds that each layer adds to a step, by level.

    A wait is shared out among the layers in proportion to their values.
    """
    values = {layer.name: math.prod(layer.shape) for layer in layers}
    whole = sum(values.values())
    return {
        layer: {name: seconds * size / whole for name, seconds in waits.items()}
        for layer, size in values.items()
        if waits
    }


def sum_waits(cost_s_by_layer: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the seconds for which a step waits at each level, from what each layer adds to it."""
    waits: defaultdict[str, float] = defaultdict(float)
    for costs in cost_s_by_layer.values():
        for name, seconds in costs.items():
            waits[name] += seconds
    return dict(waits)


def _measure_bucket(
    layers: Sequence[Layer],
    plan: Mapping[str, Level],
    *,
    world_size: int,
    clock: Callable[[], float],
) -> LevelCost:
    values = {layer.name: layer.gradient for layer in layers}
    engine = _create_engine(values, plan, world_size=world_size)
    device = layers[0].gradient.device
    seconds = []
    for _ in range(1 + _REPEATS):
        network, bucket = EchoNetwork(world_size), _draw_bucket(layers, device=device)
        _synchronize(bucket.buffer.device)
        started = clock()
        engine.exchange([bucket], network)
        engine.write_updates(is_skipped=bucket.buffer.new_zeros((), dtype=torch.bool))
        _synchronize(bucket.buffer.device)
        seconds.append(clock() - started)
        engine.commit_step()
    return LevelCost(encode_s=min(seconds[1:]), payloads=dict(network.payloads))


def _create_engine(
    values: Mapping[str, Tensor], plan: Mapping[str, Level], *, world_size: int
) -> Engine:
    """Return an engine for those of the layers that the plan decides."""
    decided = [
        LayerInfo(name=name, shape=tuple(value.shape))
        for name, value in values.items()
        if name in plan
    ]
    engine = Engine(decided, seed=0, world_size=world_size)
    engine.plan = plan
    return engine


def _draw_bucket(layers: Sequence[Layer], *, device: torch.device) -> Bucket:
    """Return a bucket of random gradients with the shapes and dtypes of `layers`."""
    sizes = [layer.gradient.numel() for layer in layers]
    generator = torch.Generator(device=device).manual_seed(0)
    buffer = torch.empty(sum(sizes), dtype=layers[0].gradient.dtype, device=device)
    buffer.normal_(generator=generator)
    parts = [
        Layer(name=layer.name, gradient=part.view(layer.gradient.shape))
        for layer, part in zip(layers, torch.split(buffer, sizes), strict=True)
    ]
    return Bucket(buffer=buffer, layers=tuple(parts))


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _extrapolate(known: Sequence[LevelCost], values: Sequence[int]) -> list[LevelCost]:
    """Return the costs of all buckets from those of the first ones, in proportion to values."""
    measured = sum(values[: len(known)])
    encode_s = sum(cost.encode_s for cost in known) / measured
    payloads: defaultdict[Collective, float] = defaultdict(float)
    for cost in known:
        for collective, payload in cost.payloads.items():
            payloads[collective] += payload / measured
    return [
        *known,
        *(
            LevelCost(
                encode_s=encode_s * size,
                payloads={collective: share * size for collective, share in payloads.items()},
            )
            for size in values[len(known) :]
        ),
    ]
