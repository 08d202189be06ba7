"""Link model and exchange plan, against brute force and against links that are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.link_model import (
    WHOLE_BUCKET,
    CollectiveTiming,
    LinkModel,
    fit_link,
    separates_latency,
)
from accordion.hook.exchange_plan import BucketCost, choose_plan, predict_end

SLOW = LinkModel(world_size=2, latency_s=0.008, bytes_per_s=5e6)
"""40 Mbit/s and 8 ms."""


def timing(link: LinkModel, payload: int, kind="all-reduce") -> CollectiveTiming:
    seconds = link.seconds_for(kind, payload)
    return CollectiveTiming(kind=kind, name="mean 0", payload=payload, seconds=seconds)


def bucket(ready_s: float, *, encode_s: float = 0.0, payload: float = 0.0, rounds: int = 2):
    collectives = {("all-reduce", f"mean {number}"): payload for number in range(rounds)}
    return BucketCost(ready_s=ready_s, encode_s=encode_s, payloads=collectives)


def every_plan(buckets: int):
    if buckets == 0:
        yield ()
        return
    for first in range(1, buckets + 1):
        yield from ((first, *rest) for rest in every_plan(buckets - first))


COLLECTIVES = st.sampled_from(
    [
        ("all-reduce", "mean 0"),
        ("posted all-reduce", "mean 1"),
        ("all-gather", "gather 0"),
        ("all-to-all", "scatter 0"),
    ]
)
COSTS = st.lists(
    st.tuples(
        st.floats(0, 0.1), st.floats(0, 0.1), st.dictionaries(COLLECTIVES, st.floats(0, 1e6))
    ),
    min_size=1,
    max_size=7,
)


def simulated_end(costs, plan, link: LinkModel) -> float:
    """When the last exchange ends, if messages and bytes are sent one by one."""
    others, end, start = link.world_size - 1, 0.0, 0
    for number in plan:
        group, start = costs[start : start + number], start + number
        end = max(end, group[-1].ready_s) + sum(cost.encode_s for cost in group)
        for kind, name in {collective for cost in group for collective in cost.payloads}:
            payload = sum(cost.payloads.get((kind, name), 0.0) for cost in group)
            is_sum = kind in ("all-reduce", "posted all-reduce")
            trips = (3 if is_sum and link.world_size > 2 else 2) - (kind == "posted all-reduce")
            sent = others * payload * (2 if is_sum else 1)
            sent /= 1 if kind == "all-gather" else link.world_size
            end += trips * link.latency_s + sent / link.bytes_per_s
    return end


@given(COSTS, st.floats(0, 0.02), st.floats(1e5, 1e9), st.integers(2, 8))
def test_no_plan_ends_before_the_chosen_one(rows, latency_s, bytes_per_s, workers):
    link = LinkModel(world_size=workers, latency_s=latency_s, bytes_per_s=bytes_per_s)
    ready_s, costs = 0.0, []
    for gap, encode_s, payloads in rows:
        costs.append(BucketCost(ready_s=ready_s, encode_s=encode_s, payloads=payloads))
        ready_s += gap
    plan = choose_plan(costs, link)
    assert sum(plan) == len(costs)
    assert predict_end(costs, plan, link) == pytest.approx(simulated_end(costs, plan, link))
    best = min(simulated_end(costs, plan, link) for plan in every_plan(len(costs)))
    assert simulated_end(costs, plan, link) == pytest.approx(best, rel=1e-9, abs=1e-12)


def test_whole_buckets_share_no_messages():
    whole = BucketCost(ready_s=0.0, encode_s=0.0, payloads={("all-reduce", WHOLE_BUCKET): 1e6})
    assert choose_plan([whole] * 3, SLOW) == (1, 1, 1)
    assert predict_end([whole] * 3, (3,), SLOW) == pytest.approx(3 * (0.016 + 0.2))


def test_latency_joins_buckets_and_a_link_without_it_separates_them():
    costs = [bucket(0.001 * place, payload=1000) for place in range(9)]
    assert choose_plan(costs, SLOW) == (9,)
    assert choose_plan(costs, LinkModel(world_size=2, latency_s=0.0, bytes_per_s=5e6)) == (1,) * 9


def test_a_long_backward_pass_hides_early_exchanges_at_any_latency():
    costs = [bucket(0.5 * place, payload=1000) for place in range(3)]
    plan = choose_plan(costs, SLOW)
    assert plan[-1] == 1
    assert predict_end(costs, plan, SLOW) == pytest.approx(1.0 + 2 * (0.016 + 1000 / 5e6))


def test_a_model_with_a_thousand_buckets_is_planned_in_blocks():
    costs = [bucket(0.001 * place, encode_s=1e-4, payload=1000) for place in range(1000)]
    plan = choose_plan(costs, SLOW)
    assert sum(plan) == 1000
    separate = predict_end(costs, (1,) * 1000, SLOW)
    assert predict_end(costs, plan, SLOW) < 0.1 * separate


@given(
    st.floats(1e-5, 0.05),
    st.floats(1e4, 1e10),
    st.integers(2, 16),
    st.lists(st.integers(0, 1 << 24), min_size=2, max_size=9, unique=True),
)
def test_a_link_is_recovered_from_its_own_timings(latency_s, bytes_per_s, workers, sizes):
    link = LinkModel(world_size=workers, latency_s=latency_s, bytes_per_s=bytes_per_s)
    found = fit_link([timing(link, size) for size in sizes], workers)
    for size in sizes:
        expected = link.seconds_for("all-reduce", size)
        assert found.seconds_for("all-reduce", size) == pytest.approx(expected, rel=0.01)


def test_a_posted_all_reduce_takes_a_trip_less_over_the_same_link():
    found = fit_link([timing(SLOW, 50_000), timing(SLOW, 200_000, "posted all-reduce")], 2)
    assert found.latency_s == pytest.approx(SLOW.latency_s)
    assert found.bytes_per_s == pytest.approx(SLOW.bytes_per_s)


def test_all_kinds_of_collectives_are_timed_by_one_link():
    four = replace(SLOW, world_size=4)
    found = fit_link([timing(four, 10_000), timing(four, 90_000, "all-gather")], 4)
    assert found.latency_s == pytest.approx(SLOW.latency_s)
    assert found.bytes_per_s == pytest.approx(SLOW.bytes_per_s)


def test_with_the_latency_given_equal_payloads_show_the_bandwidth():
    equal = [timing(SLOW, 50_000)] * 5
    assert not separates_latency(equal)
    found = fit_link(equal, 2, latency_s=SLOW.latency_s)
    assert found.bytes_per_s == pytest.approx(SLOW.bytes_per_s)


def test_a_latency_that_explains_more_than_was_measured_leaves_no_time_for_bytes():
    found = fit_link([timing(SLOW, 50_000)], 2, latency_s=1.0)
    assert found.bytes_per_s == math.inf


@pytest.mark.parametrize(("sizes", "told"), [((1, 4), True), ((1, 3), False), ((5,), False)])
def test_payloads_that_differ_fourfold_tell_latency_from_bandwidth(sizes, told):
    assert separates_latency([timing(SLOW, size) for size in sizes]) == told


def test_a_link_on_which_bytes_take_no_time_has_infinite_bandwidth():
    timings = [
        CollectiveTiming(kind="all-reduce", name="mean 0", payload=size, seconds=0.001)
        for size in (10, 10_000)
    ]
    found = fit_link(timings, 2)
    assert found == LinkModel(
        world_size=2, latency_s=pytest.approx(0.0005, rel=0.2), bytes_per_s=math.inf
    )
    assert "over 100 Gbit/s" in str(found)


@pytest.mark.parametrize(("timings", "workers"), [([], 2), ([timing(SLOW, 1)], 1)])
def test_a_link_without_timings_or_peers_is_refused(timings, workers):
    with pytest.raises(ValueError, match="at least one timing of at least two workers"):
        fit_link(timings, workers)
