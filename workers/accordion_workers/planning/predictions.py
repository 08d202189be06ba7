"""Predicted step time and bytes of every method and level on a given link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from accordion.base.link_model import LinkModel, wire_bytes
from accordion.base.messages import Level, OptionValue
from accordion.compress.layer_stacks import Layer
from accordion.compressors import COMPRESSORS, ladder_of
from accordion.hook.exchange_plan import (
    BucketCost,
    LevelCost,
    Plan,
    choose_plan,
    count_collectives,
    predict_end,
)
from accordion.hook.level_costs import measure_levels
from accordion_workers.planning.step_measurement import StepMeasurement
from accordion_workers.records.contract import JobSpec
from accordion_workers.training.layer_parts import cut_layer
from accordion_workers.training.loop import min_step_s
from accordion_workers.training.sampler import num_batches

MAX_SECONDS = 30.0
"""Time limit for measuring the levels; later buckets cost as much per value as the first ones."""


PAYLOAD_SHARE = 1448 / 1538
"""Part of a link's nominal rate that carries data; headers take the rest of each frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A step of the whole group at one level, with gradients exchanged in every step or after a
    round of local steps.
    """

    method: str
    level: str
    """`low` or `high`; empty for a method without levels."""
    options: Mapping[str, OptionValue]
    step_s: float
    """Seconds of a step, at least the task's `min_step_s`."""
    exchange_s: float
    """Part of it by which encoding and exchanging lengthens the step, spread over a round."""
    sent_bytes: int
    """Bytes that a worker sends per step, spread over a round; that a replica sends, if workers
    hold the model together.
    """
    exchange_plan: Plan
    """Number of DDP's buckets in each exchange."""
    collectives: int
    """Number of collectives of an exchange, which run one after the other."""
    is_own_method: bool
    """Whether it is the method of the job's spec."""
    local_steps: int = 1
    """Steps of a round; 1 if gradients are exchanged in every step."""


def nominal_link(*, workers: int, latency_s: float, bytes_per_s: float) -> LinkModel:
    """Return the model of a link, given its nominal rate, as of a network interface."""
    return LinkModel(
        world_size=workers, latency_s=latency_s, bytes_per_s=PAYLOAD_SHARE * bytes_per_s
    )


def predict_steps(measured: StepMeasurement, spec: JobSpec, link: LinkModel) -> list[Prediction]:
    """Predict the step of every method and level, the fastest first.

    The job's own method has the levels of its spec, and its rounds of local steps at their shortest
    and longest; other methods have their defaults, in every step.
    """
    levels = list_levels(spec)
    buckets, decided = _cut_buckets(measured, spec.num_shards)
    plans = {name: dict.fromkeys(decided, level) for name, level in levels.items()}
    costs = measure_levels(buckets, plans, world_size=link.world_size, max_seconds=MAX_SECONDS)
    costs = {name: _share_encoding(found, spec.num_shards) for name, found in costs.items()}
    predictions = [
        _predict(measured, spec, level, link=link, costs=costs[name], local_steps=length)
        for name, level in levels.items()
        for length in _list_lengths(spec, level, samples=measured.samples)
    ]
    return sorted(predictions, key=lambda prediction: prediction.step_s)


def _cut_buckets(measured: StepMeasurement, shards: int) -> tuple[list[list[Layer]], Sequence[str]]:
    """Return the buckets with the parts of layers that so many workers have, and the names of those
    whose level is decided.
    """
    layers, decided = {layer.name for layer in measured.layers}, list[str]()
    buckets: list[list[Layer]] = [[] for _ in measured.buckets]
    for bucket, whole in zip(buckets, measured.buckets, strict=True):
        for layer in whole:
            parts = cut_layer(layer.name, layer.gradient, shards=shards)
            bucket += [Layer(name=name, gradient=part) for name, part in parts.items()]
            decided += parts if layer.name in layers else ()
    return buckets, decided


def _share_encoding(costs: Sequence[LevelCost], shards: int) -> list[LevelCost]:
    """Return the costs of workers that hold the model together: each encodes its part, and their
    payloads share the link of their node.
    """
    return [replace(cost, encode_s=cost.encode_s / shards) for cost in costs]


def list_levels(spec: JobSpec) -> dict[str, Level]:
    """Return the levels to predict, by a name that is unique among them."""
    levels: dict[str, Level] = {}
    for method in COMPRESSORS:
        own = spec.compression
        low, high = (
            ladder_of(method, own.low, own.high) if own.method == method else ladder_of(method)
        )
        levels[f"{method} low"] = low
        if high.options != low.options:
            levels[f"{method} high"] = high
    return levels


def _list_lengths(spec: JobSpec, level: Level, *, samples: int) -> list[int]:
    """Return the steps of a round to predict at a level, at most those of an epoch, with which
    rounds end; without compression also every step, with which all others are compared.
    """
    local = spec.config().local_steps
    if local is None or level.method != spec.compression.method:
        return [1]
    first = [1] if local.has_start or level.method == "none" else []
    most = num_batches(samples, spec.training.global_batch)
    return list(dict.fromkeys([*first, min(local.low, most), min(local.high, most)]))


def _predict(
    measured: StepMeasurement,
    spec: JobSpec,
    level: Level,
    *,
    link: LinkModel,
    costs: Sequence[LevelCost],
    local_steps: int,
) -> Prediction:
    # Changes of parameters are ready at once, and no backward pass runs beside their exchange.
    ready_s = measured.ready_s if local_steps == 1 else [0.0] * len(costs)
    buckets = _bucket_costs(ready_s, costs)
    plan = choose_plan(buckets, link)
    end_s = predict_end(buckets, plan, link)
    if local_steps == 1:
        step_s = measured.first_ready_s + end_s + measured.optimizer_s
    else:
        # Encoding takes the processor from the steps beside which an exchange runs.
        beside_s = measured.step_s * _overlap(spec, local_steps)
        left_s = max(end_s - beside_s, sum(cost.encode_s for cost in costs))
        step_s = measured.step_s + min(end_s, left_s) / local_steps
    sent = sum(
        wire_bytes(kind, payload, link.world_size)
        for cost in costs
        for (kind, _), payload in cost.payloads.items()
    )
    has_levels = bool(COMPRESSORS[level.method].low or COMPRESSORS[level.method].high)
    return Prediction(
        method=level.method,
        level=level.name if has_levels else "",
        options=level.options,
        step_s=max(step_s, min_step_s(spec)),
        exchange_s=max(0.0, step_s - measured.step_s),
        sent_bytes=round(sent / local_steps),
        exchange_plan=plan,
        collectives=count_collectives(costs, plan),
        is_own_method=level.method == spec.compression.method,
        local_steps=local_steps,
    )


def _overlap(spec: JobSpec, length: int) -> int:
    """Return the steps of a round during which the exchange of the one before may run."""
    local = spec.config().local_steps
    return 0 if local is None else min(local.overlap, length)


def _bucket_costs(ready_s: Sequence[float], costs: Sequence[LevelCost]) -> list[BucketCost]:
    """Return the costs by bucket of a worker whose threads share one CPU: what it encodes for
    earlier buckets delays the backward pass.
    """
    buckets, encoded_s = [], 0.0
    for ready, cost in zip(ready_s, costs, strict=True):
        buckets.append(
            BucketCost(ready_s=ready + encoded_s, encode_s=cost.encode_s, payloads=cost.payloads)
        )
        encoded_s += cost.encode_s
    return buckets
