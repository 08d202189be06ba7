"""Sizes of the all-reduces that show a link's bandwidth, on a link and a host that are counted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from accordion.session.bandwidth_probe import (
    MAX_BYTES,
    MAX_SHARE,
    MAX_SKIPPED,
    MIN_BYTES,
    BandwidthProbe,
)

MODEL_BYTES = 64 << 20
WAITED_S = itertools.count(0, 10**9)
"""Waits of which every probe can save enough."""


def probe(
    ours: BandwidthProbe,
    bytes_per_s: float,
    *,
    late_s: Iterable[float] = (0.0,),
    waited_s: float | None = None,
    latency_s: float = 0.0,
) -> list[int]:
    """Make a probe in which all-reduces take these seconds longer in turn; return their sizes."""
    sizes, delays = [], itertools.cycle(late_s)
    size = ours.begin(next(WAITED_S) if waited_s is None else waited_s, latency_s)
    while size:
        sizes.append(size)
        size = ours.observe(latency_s + size / bytes_per_s + next(delays))
    return sizes


def speed(ours: BandwidthProbe) -> float:
    assert ours.timing is not None
    return ours.timing.payload / ours.timing.seconds


@pytest.mark.parametrize("bytes_per_s", [1e5, 1e7, 1e8])
@pytest.mark.parametrize("latency_s", [0.0, 0.005])
def test_a_probe_shows_the_bandwidth_and_then_needs_fewer_sizes(bytes_per_s, latency_s) -> None:
    ours = BandwidthProbe(MODEL_BYTES)
    probe(ours, bytes_per_s, latency_s=latency_s)
    assert speed(ours) == pytest.approx(bytes_per_s)
    assert len(set(probe(ours, bytes_per_s, latency_s=latency_s))) <= 2
    assert speed(ours) == pytest.approx(bytes_per_s)


def test_no_probe_has_more_bytes_than_the_gradients() -> None:
    assert max(probe(BandwidthProbe(1 << 20), 1e12)) == 1 << 20
    assert max(probe(BandwidthProbe(MODEL_BYTES), 1e12)) == MAX_BYTES
    assert max(probe(BandwidthProbe(100), 1e12)) == MIN_BYTES


@pytest.mark.parametrize("mean_s", [0.005, 0.02])
def test_a_host_whose_processor_is_waited_for_does_not_make_the_link_slow(mean_s) -> None:
    """What each all-reduce of 1000 Mbit/s waits in addition is drawn."""
    draw = random.Random(1)
    ours = BandwidthProbe(MODEL_BYTES)
    found = []
    for _ in range(100):
        late_s = (draw.expovariate(1 / mean_s) for _ in itertools.count())
        probe(ours, 125e6, late_s=late_s)
        found.append(speed(ours) / 125e6)
    assert sorted(found)[10] > 0.5
    assert max(found) < 2.0


def test_bytes_that_make_no_difference_do_not_make_the_link_infinitely_fast() -> None:
    """A late all-reduce of fewer bytes takes as long as the largest one."""
    ours, max_bytes = BandwidthProbe(1 << 20), 1 << 20
    probe(ours, 1e9, late_s=(0.0, max_bytes / 1e9, 0.0, 0.0, 0.0))
    assert speed(ours) == pytest.approx(1e9)


def test_one_odd_probe_is_not_believed() -> None:
    ours = BandwidthProbe(MODEL_BYTES)
    for late_s in ((0.0,), (0.0,), (0.4,)):
        probe(ours, 125e6, late_s=late_s)
        assert speed(ours) == pytest.approx(125e6)


@pytest.mark.parametrize(("before", "after"), [(125e6, 12.5e6), (12.5e6, 125e6)])
def test_another_link_is_known_after_two_probes(before, after) -> None:
    ours = BandwidthProbe(MODEL_BYTES)
    for bytes_per_s in (before, before, before, after, after):
        probe(ours, bytes_per_s)
    assert speed(ours) == pytest.approx(after, rel=0.1)


def test_a_slow_link_is_probed_once() -> None:
    assert probe(BandwidthProbe(MODEL_BYTES), 1e5) == [MIN_BYTES]


def test_a_probe_that_costs_more_than_it_could_save_is_left_out() -> None:
    ours = BandwidthProbe(MODEL_BYTES)
    cost_s = sum(size / 1e8 for size in probe(ours, 1e8, waited_s=0.0))
    timing = ours.timing
    assert probe(ours, 1e8, waited_s=0.9 * cost_s / MAX_SHARE) == []
    assert ours.timing is timing
    assert probe(ours, 1e8, waited_s=1.1 * cost_s / MAX_SHARE) != []


def test_the_link_is_probed_now_and_then_although_nothing_waits_for_it() -> None:
    ours = BandwidthProbe(MODEL_BYTES)
    probe(ours, 1e8, waited_s=0.0)
    made = [bool(probe(ours, 1e8, waited_s=0.0)) for _ in range(MAX_SKIPPED + 1)]
    assert made == [False] * MAX_SKIPPED + [True]
