"""Exchange plan: which of DDP's buckets share an exchange, chosen by measured times; stdlib only.

An exchange begins when its last bucket is ready and the exchange before it has ended. Buckets that
share one save round trips, but the first of them waits for the last. `choose_plan` finds the plan
whose last exchange ends first. It is exact for the model of `LinkModel`: whatever comes later, an
earlier end is never worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from accordion.base.link_model import WHOLE_BUCKET, Collective, LinkModel

Plan = tuple[int, ...]
"""Number of buckets in each exchange of a step, in the order in which they become ready."""
MAX_BLOCKS = 64
"""Largest number of places between which exchanges may begin; models with more buckets are planned
in blocks of neighbouring buckets.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCost:
    """What one bucket adds to an exchange."""

    ready_s: float
    """When its gradients are complete, in seconds since those of the step's first bucket."""
    encode_s: float
    """Seconds of encoding and decoding."""
    payloads: Mapping[Collective, float]
    """Bytes that each worker passes to each collective, by the collective's kind and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelCost:
    """What one bucket would add to an exchange at a level that is not in force."""

    encode_s: float
    """Seconds of encoding and decoding, beside no other work."""
    payloads: Mapping[Collective, float]
    """Bytes that each worker passes to each collective, by the collective's kind and name."""


def predict_end(costs: Sequence[BucketCost], plan: Plan, link: LinkModel) -> float:
    """Return when the last exchange ends, in seconds since the first bucket was ready."""
    end, start = 0.0, 0
    for stop in accumulate(plan):
        group = costs[start:stop]
        end = max(end, group[-1].ready_s) + _exchange_s(group, link)
        start = stop
    return end


def choose_plan(costs: Sequence[BucketCost], link: LinkModel) -> Plan:
    """Return the plan with the earliest predicted end; of equal ones, that with most exchanges."""
    block = -(-len(costs) // MAX_BLOCKS)
    stops = [*range(block, len(costs), block), len(costs)]
    starts = [0, *stops]
    # Earliest end of the exchanges before each start, and their plan.
    ends: list[float] = [0.0]
    plans: list[Plan] = [()]
    for index, stop in enumerate(stops):
        joined = _ExchangeDuration(link)
        best_end, best_before = math.inf, index
        for before in range(index, -1, -1):
            joined.add(costs[starts[before] : stops[before]])
            end = max(ends[before], costs[stop - 1].ready_s) + joined.seconds
            if end < best_end:
                best_end, best_before = end, before
        ends.append(best_end)
        plans.append((*plans[best_before], stop - starts[best_before]))
    return plans[-1]


def count_collectives(costs: Sequence[BucketCost | LevelCost], plan: Plan) -> int:
    """Return the collectives of a step: those of equal kind and name share one within an exchange,
    except whole buckets.
    """
    count, start = 0, 0
    for stop in accumulate(plan):
        called = [collective for cost in costs[start:stop] for collective in cost.payloads]
        whole = sum(name == WHOLE_BUCKET for _, name in called)
        count += whole + len({one for one in called if one[1] != WHOLE_BUCKET})
        start = stop
    return count


class _ExchangeDuration:
    """Duration of one exchange to which buckets are added one by one."""

    def __init__(self, link: LinkModel) -> None:
        self._link = link
        self._known: set[Collective] = set()
        self.seconds = 0.0

    def add(self, costs: Sequence[BucketCost]) -> None:
        for cost in costs:
            self.seconds += cost.encode_s
            for collective, payload in cost.payloads.items():
                kind, name = collective
                seconds = self._link.seconds_for(kind, payload)
                if collective in self._known and name != WHOLE_BUCKET:  # it shares the messages
                    seconds -= self._link.seconds_for(kind, 0.0)
                self._known.add(collective)
                self.seconds += seconds


def _exchange_s(costs: Sequence[BucketCost], link: LinkModel) -> float:
    joined = _ExchangeDuration(link)
    joined.add(costs)
    return joined.seconds
