"""Exchange plan: which of DDP's buckets share an exchange, chosen by measured times; stdlib only.

An exchange begins when its last bucket is ready and the exchange before it has ended. Buckets that
share one save round trips, but the first of them waits for the last. `choose_plan` finds the plan
whose last exchange ends first. It is exact for the model of `Ring`: whatever comes later, an
earlier end is never worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from accordion.link_model import CollectiveKind, Ring

Plan = tuple[int, ...]
"""Number of buckets in each exchange of a step, in the order in which they become ready."""
MOST_UNITS = 64
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
    payloads: Mapping[tuple[CollectiveKind, str], float]
    """Bytes that each worker passes to each collective, by the collective's kind and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelCost:
    """What one bucket would add to an exchange at a level that is not in force."""

    encode_s: float
    """Seconds of encoding and decoding, beside no other work."""
    payloads: Mapping[tuple[CollectiveKind, str], float]
    """Bytes that each worker passes to each collective, by the collective's kind and name."""


def predict_end(costs: Sequence[BucketCost], plan: Plan, ring: Ring) -> float:
    """Return when the last exchange ends, in seconds since the first bucket was ready."""
    end, start = 0.0, 0
    for stop in accumulate(plan):
        group = costs[start:stop]
        end = max(end, group[-1].ready_s) + _exchange_s(group, ring)
        start = stop
    return end


def choose_plan(costs: Sequence[BucketCost], ring: Ring) -> Plan:
    """Return the plan with the earliest predicted end; of equal ones, that with most exchanges."""
    block = -(-len(costs) // MOST_UNITS)
    stops = [*range(block, len(costs), block), len(costs)]
    starts = [0, *stops]
    ends: list[float] = [0.0]
    """Earliest end of the exchanges before each start."""
    plans: list[Plan] = [()]
    for place, stop in enumerate(stops):
        joined = _Joined(ring)
        best_end, best_before = math.inf, place
        for before in range(place, -1, -1):
            joined.add(costs[starts[before] : stops[before]])
            end = max(ends[before], costs[stop - 1].ready_s) + joined.seconds
            if end < best_end:
                best_end, best_before = end, before
        ends.append(best_end)
        plans.append((*plans[best_before], stop - starts[best_before]))
    return plans[-1]


class _Joined:
    """Duration of one exchange to which buckets are added one by one."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._known: set[tuple[CollectiveKind, str]] = set()
        self.seconds = 0.0

    def add(self, costs: Sequence[BucketCost]) -> None:
        for cost in costs:
            self.seconds += cost.encode_s
            for collective, payload in cost.payloads.items():
                kind, _ = collective
                seconds = self._ring.seconds_for(kind, payload)
                if collective in self._known:  # it shares the messages
                    seconds -= self._ring.seconds_for(kind, 0.0)
                self._known.add(collective)
                self.seconds += seconds


def _exchange_s(costs: Sequence[BucketCost], ring: Ring) -> float:
    joined = _Joined(ring)
    joined.add(costs)
    return joined.seconds
