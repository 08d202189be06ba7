"""Time that collectives take on a measured link; stdlib only.

A collective takes the link's latency for each of its trips that follow each other, and its bytes
divided by the bandwidth. This is the model of `direct_collectives.py`, so of gloo on CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CollectiveKind = Literal["all-reduce", "posted all-reduce", "all-gather", "all-to-all"]
"""A posted all-reduce is one whose receives were posted during the collective before it."""
Collective = tuple[CollectiveKind, str]
"""Kind and name of a collective."""
WHOLE_BUCKET = "bucket"
"""Name of the all-reduce of a whole uncompressed bucket, which shares its call with no other."""
_SHORTEST_S = 1e-7
"""Lower limit of a measured duration, so that a clock that did not advance divides nothing by zero.
"""
_MIN_PAYLOAD_RATIO = 4.0
"""Smallest payload ratio at which latency and bandwidth are fitted separately: with a smaller one,
an error of 10 % in a duration changes the latency by more than a third.
"""
_SINGULAR = 1e-6
"""Relative determinant below which the normal equations are singular."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTiming:
    """One measured collective."""

    kind: CollectiveKind
    name: str
    """Round and dtype, or `WHOLE_BUCKET`. Collectives of equal kind and name share a call if their
    buckets share an exchange, except whole buckets.
    """
    payload: float
    """Bytes that each worker passed to the network."""
    seconds: float
    """Seconds of the call, waiting for slower workers included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """Measured link between workers, where all wait for the slowest link."""

    world_size: int
    latency_s: float
    """Seconds that a message takes in addition to the time of its bytes."""
    bytes_per_s: float
    """Bandwidth in one direction; infinite if bytes take no measurable time."""

    def seconds_for(self, kind: CollectiveKind, payload: float) -> float:
        """Return the seconds of a collective in which each worker passes `payload` bytes."""
        return (
            count_messages(kind, self.world_size) * self.latency_s
            + wire_bytes(kind, payload, self.world_size) / self.bytes_per_s
        )

    def speed(self) -> dict[str, float]:
        """Return latency and bandwidth as JSON; an infinite bandwidth is left out."""
        speed = {"latency_s": self.latency_s, "bytes_per_s": self.bytes_per_s}
        return {name: value for name, value in speed.items() if math.isfinite(value)}

    def __str__(self) -> str:
        return format_link(self.latency_s, self.bytes_per_s)


def format_link(latency_s: float, bytes_per_s: float) -> str:
    """Return bandwidth and latency as text, such as `96 Mbit/s and 0.2 ms per message`.

    From 1000 Mbit/s on, the bandwidth is in Gbit/s.
    """
    speed = float(f"{8e-6 * bytes_per_s:.3g}")
    bandwidth = f"{speed:g} Mbit/s" if speed < 1e3 else f"{1e-3 * speed:g} Gbit/s"
    if speed >= 1e5:
        bandwidth = "over 100 Gbit/s"
    return f"{bandwidth} and {1e3 * latency_s:.2g} ms per message"


def count_messages(kind: CollectiveKind, world_size: int) -> int:
    """Return the trips over the link that follow each other.

    In the first one, unless it was made before, a sender learns that its receive is posted. An
    all-reduce of more than two workers sends parts and then their sums.
    """
    trips = 2 if kind in ("all-gather", "all-to-all") or world_size == 2 else 3
    return trips - (kind == "posted all-reduce")


def wire_bytes(kind: CollectiveKind, payload: float, world_size: int) -> float:
    """Return the bytes that each worker sends, on average over the workers.

    They are the same with direct messages and in a ring.

    `payload` is what each worker passes to the network, in bytes; for an all-to-all, the parts for
    all workers together, its own included.
    """
    others = world_size - 1
    match kind:
        case "all-gather":
            return others * payload
        case "all-to-all":
            return others * payload / world_size
        case _:
            return 2 * others * payload / world_size


def separates_latency(timings: Sequence[CollectiveTiming]) -> bool:
    """Return whether the payloads differ enough to tell latency from bandwidth."""
    sizes = [timing.payload for timing in timings]
    return len(sizes) > 1 and max(sizes) >= _MIN_PAYLOAD_RATIO * min(sizes)


def fit_link(
    timings: Sequence[CollectiveTiming],
    world_size: int,
    *,
    latency_s: float | None = None,
    bytes_per_s: float | None = None,
) -> LinkModel:
    """Return the link whose predictions have the least squared relative error.

    Latency and bandwidth are not negative. If all payloads are similar, give one of them.

    Raises:
        ValueError: there are no timings, or the workers have no peers.
    """
    if not timings or world_size < 2:
        raise ValueError(
            f"got {len(timings)} timings of {world_size} workers; a link is fitted to at least one"
            " timing of at least two workers"
        )
    by_messages, by_bytes = [], []
    for timing in timings:
        seconds = max(timing.seconds, _SHORTEST_S)
        by_messages.append(count_messages(timing.kind, world_size) / seconds)
        by_bytes.append(wire_bytes(timing.kind, timing.payload, world_size) / seconds)
    if bytes_per_s is not None:
        per_byte = 1.0 / bytes_per_s
        latency = _solve_one(by_messages, [1.0 - per_byte * share for share in by_bytes])
    elif latency_s is not None:
        latency = latency_s
        per_byte = _solve_one(by_bytes, [1.0 - latency * share for share in by_messages])
    else:
        latency, per_byte = _solve_nonnegative(by_messages, by_bytes)
    return LinkModel(
        world_size=world_size,
        latency_s=latency,
        bytes_per_s=1.0 / per_byte if per_byte > 0.0 else math.inf,
    )


def _solve_nonnegative(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the x, y >= 0 with the least sum of (x * first + y * second - 1) squared."""
    square, other_square = _dot(first, first), _dot(second, second)
    product, total, other_total = _dot(first, second), sum(first), sum(second)
    determinant = square * other_square - product**2
    if determinant > _SINGULAR * square * other_square:
        x = (total * other_square - other_total * product) / determinant
        y = (other_total * square - total * product) / determinant
        if x >= 0.0 and y >= 0.0:
            return x, y
    # The best solution is on an edge: the one that explains more of the sum of squares.
    if other_square == 0.0 or total**2 / square >= other_total**2 / other_square:
        return total / square, 0.0
    return 0.0, other_total / other_square


def _solve_one(factors: Sequence[float], targets: Sequence[float]) -> float:
    """Return the x >= 0 with the least sum of (x * factors - targets) squared."""
    square = _dot(factors, factors)
    return max(0.0, _dot(factors, targets) / square) if square > 0.0 else 0.0


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))
