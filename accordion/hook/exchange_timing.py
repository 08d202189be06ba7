"""Measured exchanges of a window of steps, and what they say about buckets and collectives; stdlib
only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

from accordion.base.link_model import Collective, CollectiveTiming
from accordion.hook.exchange_plan import BucketCost


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTiming:
    """One measured exchange."""

    ready_s: tuple[float, ...]
    """When each of its buckets was handed over, by `time.perf_counter`."""
    values: tuple[int, ...]
    """Number of values in each bucket."""
    started_s: float
    ended_s: float
    collectives: tuple[CollectiveTiming, ...]
    """Its collectives in their order."""

    @property
    def encode_s(self) -> float:
        """Seconds outside collectives."""
        return self.ended_s - self.started_s - sum(item.seconds for item in self.collectives)


Step = Sequence[ExchangeTiming]
"""Exchanges of one step, in their order."""


def median_span_s(steps: Sequence[Step]) -> float:
    """Return the seconds from the first complete bucket to the end of the last exchange."""
    return median(step[-1].ended_s - step[0].ready_s[0] for step in steps)


def median_wait_s(steps: Sequence[Step]) -> float:
    """Return the seconds from the last complete bucket to the end of the last exchange."""
    return median(step[-1].ended_s - step[-1].ready_s[-1] for step in steps)


def median_step_s(steps: Sequence[Step]) -> float | None:
    """Return the seconds from the end of a step's exchanges to the end of the next step's; None for
    a single step.
    """
    ends = [step[-1].ended_s for step in steps]
    return median(later - end for end, later in pairwise(ends)) if len(ends) > 1 else None


def collective_samples(steps: Sequence[Step]) -> list[CollectiveTiming]:
    """Return one timing for each collective and payload of the steps' exchanges.

    Its duration is the lower quartile, which excludes most waiting for other workers.
    """
    found: dict[tuple[int, Collective, float], list[float]] = {}
    for step in steps:
        for index, exchange in enumerate(step):
            for timing in exchange.collectives:
                key = (index, (timing.kind, timing.name), timing.payload)
                found.setdefault(key, []).append(timing.seconds)
    return [
        CollectiveTiming(kind=kind, name=name, payload=payload, seconds=_lower_quartile(seconds))
        for (_, (kind, name), payload), seconds in found.items()
    ]


def bucket_costs(steps: Sequence[Step], known: Sequence[BucketCost]) -> list[BucketCost]:
    """Return the costs of every bucket in steps with the same exchange plan.

    Buckets that share an exchange share its cost in proportion to their `known` costs, or to their
    values if these are not known.
    """
    first_ready_s = [step[0].ready_s[0] for step in steps]
    costs: list[BucketCost] = []
    for exchanges in zip(*steps, strict=True):
        part = known[len(costs) : len(costs) + len(exchanges[0].values)]
        costs += _split_costs(exchanges, known=part, first_ready_s=first_ready_s)
    return costs


def _split_costs(
    exchanges: Sequence[ExchangeTiming],
    *,
    known: Sequence[BucketCost],
    first_ready_s: Sequence[float],
) -> list[BucketCost]:
    values = exchanges[0].values
    encode_s = max(0.0, median(exchange.encode_s for exchange in exchanges))
    encode = _share(encode_s, [cost.encode_s for cost in known], values)
    payloads: list[dict[Collective, float]] = [{} for _ in values]
    for collective, payload in _mean_payloads(exchanges).items():
        weights = [cost.payloads.get(collective, 0.0) for cost in known]
        for bucket, share in zip(payloads, _share(payload, weights, values), strict=True):
            if share > 0.0:
                bucket[collective] = share
    return [
        BucketCost(
            ready_s=median(
                exchange.ready_s[index] - first
                for exchange, first in zip(exchanges, first_ready_s, strict=True)
            ),
            encode_s=encode[index],
            payloads=payloads[index],
        )
        for index in range(len(values))
    ]


def _mean_payloads(exchanges: Sequence[ExchangeTiming]) -> Mapping[Collective, float]:
    """Return the bytes of an exchange by collective, averaged over the steps."""
    totals: dict[Collective, float] = {}
    for exchange in exchanges:
        for timing in exchange.collectives:
            collective = (timing.kind, timing.name)
            totals[collective] = totals.get(collective, 0.0) + timing.payload
    return {collective: total / len(exchanges) for collective, total in totals.items()}


def _share(total: float, known: Sequence[float], values: Sequence[int]) -> list[float]:
    weights = known if len(known) == len(values) and sum(known) > 0.0 else values
    whole = sum(weights)
    return [total * weight / whole for weight in weights]


def _lower_quartile(values: Sequence[float]) -> float:
    return quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]
