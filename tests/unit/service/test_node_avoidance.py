"""Laws of the nodes that take no workers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion_service.domain.capacity.nodes import (
    MAX_NODES,
    AvoidanceRules,
    NodeFailure,
    NodeRecord,
    NodeState,
    describe_node_state,
    find_states,
    start_avoidances,
)

NOW = 1_800_000_000.0
RULES = AvoidanceRules(failures=3, window_s=1800.0, first_s=1800.0, longest_s=86_400.0)
NAMES = ("a", "b", "c", "d", "e")
TIMES = st.floats(NOW - 4000, NOW + 100)
FAILURES = st.lists(
    st.builds(
        NodeFailure,
        node=st.sampled_from(NAMES),
        job_id=st.sampled_from(["1", "2", "3", "4"]),
        time=TIMES,
    ),
    max_size=40,
)
ANY_RULES = st.builds(
    AvoidanceRules,
    failures=st.sampled_from([0, 2, 3, 5]),
    window_s=st.sampled_from([60.0, 1800.0]),
    first_s=st.sampled_from([1.0, 1800.0]),
    longest_s=st.sampled_from([1800.0, 86_400.0]),
)
RECORDS = st.lists(
    st.builds(
        NodeRecord,
        name=st.sampled_from([*NAMES, "gone"]),
        cordoned_at=st.none() | TIMES,
        avoided_since=st.none() | TIMES,
        avoided_until=st.floats(NOW - 2000, NOW + 90_000),
        num_avoided=st.integers(0, 2000),
        restored_at=st.just(0.0) | TIMES,
    ),
    max_size=6,
).map(lambda records: {record.name: record for record in records})


def failures(
    *jobs: str, node: str = "a", time: float = NOW - 10, owner: str | None = None
) -> list[NodeFailure]:
    return [NodeFailure(node=node, job_id=job, time=time, owner=owner) for job in jobs]


def of_one_kind(names: Collection[str]) -> dict[str, bool]:
    """Nodes without GPUs."""
    return dict.fromkeys(names, False)


@given(FAILURES, RECORDS, ANY_RULES)
def test_failures_of_one_job_never_have_a_node_avoided(
    found: list[NodeFailure], records: dict[str, NodeRecord], rules: AvoidanceRules
) -> None:
    of_one = [replace(failure, job_id="1") for failure in found]
    assert start_avoidances(of_one, records, rules, now=NOW) == []


@given(RECORDS, ANY_RULES.filter(lambda rules: rules.failures > 0))
def test_every_avoidance_expires(records: dict[str, NodeRecord], rules: AvoidanceRules) -> None:
    free = {name: one for name, one in records.items() if not one.is_cordoned}
    found = failures(*["1", "2"] * rules.failures, time=NOW)
    started = start_avoidances(found, free, rules, now=NOW)
    last = max(free["a"].avoided_since or 0.0, free["a"].restored_at) if "a" in free else 0.0
    assert started or free["a"].is_avoided(NOW) or last >= NOW
    for avoidance in started:
        assert NOW < avoidance.until <= NOW + rules.longest_s
        later = NodeRecord(name="a", avoided_since=NOW, avoided_until=avoidance.until)
        assert later.is_avoided(NOW)
        assert not later.is_avoided(NOW + rules.longest_s)


@given(RECORDS, st.dictionaries(st.sampled_from(NAMES), st.booleans()))
def test_at_most_half_of_the_nodes_of_a_kind_are_avoided(
    records: dict[str, NodeRecord], has_gpus: dict[str, bool]
) -> None:
    found = find_states(records, has_gpus, NOW)
    for kind in (True, False):
        states = [found[name] for name, has_some in has_gpus.items() if has_some is kind]
        avoided, cordoned = states.count(NodeState.AVOIDED), states.count(NodeState.CORDONED)
        assert avoided == 0 or avoided + cordoned <= len(states) / 2


@given(FAILURES, RECORDS, ANY_RULES)
def test_no_node_is_avoided_twice_at_a_time(
    found: list[NodeFailure], records: dict[str, NodeRecord], rules: AvoidanceRules
) -> None:
    started = [one.name for one in start_avoidances(found, records, rules, now=NOW)]
    busy = {name for name, one in records.items() if one.is_avoided(NOW) or one.is_cordoned}
    assert busy.isdisjoint(started)
    assert len(set(started)) == len(started)


def test_three_failures_of_two_jobs_have_a_node_avoided_for_half_an_hour() -> None:
    [avoidance] = start_avoidances(failures("1", "1", "2"), {}, RULES, now=NOW)
    assert (avoidance.name, avoidance.until, avoidance.num_avoided) == ("a", NOW + 1800, 1)
    assert avoidance.because == "3 failures of workers of 2 jobs"


@pytest.mark.parametrize(
    ("found", "rules"),
    [
        (failures("1", "2"), RULES),
        (failures(*"1111"), RULES),
        (failures("1", "1", time=NOW - 1801) + failures("2"), RULES),
        (failures("1", "1", "2", time=NOW + 5), RULES),
        (failures("1", "2", "3"), replace(RULES, failures=0)),
    ],
    ids=["too few", "one job", "too old", "in the future", "switched off"],
)
def test_other_failures_do_not(found: list[NodeFailure], rules: AvoidanceRules) -> None:
    assert start_avoidances(found, {}, rules, now=NOW) == []


def test_a_job_that_fails_on_many_nodes_counts_for_none() -> None:
    others = NAMES[1 : MAX_NODES + 1]
    elsewhere = [one for node in others for one in failures("1", node=node)]
    found = failures("1", "1", "2")
    assert start_avoidances(found, {}, RULES, now=NOW)
    assert start_avoidances([*found, *elsewhere], {}, RULES, now=NOW) == []


def test_an_owner_whose_jobs_fail_on_many_nodes_counts_for_none() -> None:
    others = [failures(f"9{node}", node=node, owner="ada") for node in NAMES[1 : MAX_NODES + 1]]
    found = failures("1", "1", "2", owner="ada")
    assert start_avoidances(found, {}, RULES, now=NOW)
    sweep = [*found, *(one for some in others for one in some)]
    assert start_avoidances(sweep, {}, RULES, now=NOW) == []
    of_bob = failures("3", "3", "4", owner="bob")
    assert [one.name for one in start_avoidances([*sweep, *of_bob], {}, RULES, now=NOW)] == ["a"]


def test_the_only_node_with_gpus_is_never_avoided() -> None:
    has_gpus = {"a": True, "b": False, "c": False}
    assert find_states({"a": avoided("a", NOW - 1)}, has_gpus, NOW)["a"] is NodeState.FAILING


def test_each_further_avoidance_lasts_twice_as_long_up_to_a_day() -> None:
    record, now, lasted = NodeRecord(name="a"), NOW, []
    for _ in range(9):
        found = failures("1", "1", "2", time=now)
        [avoidance] = start_avoidances(found, {"a": record}, RULES, now=now)
        lasted.append((avoidance.until - now) / 60)
        record = replace(
            record,
            avoided_since=now,
            avoided_until=avoidance.until,
            num_avoided=avoidance.num_avoided,
        )
        assert start_avoidances(found, {"a": record}, RULES, now=avoidance.until) == []
        now = avoidance.until + 60
    assert lasted == [30, 60, 120, 240, 480, 960, 1440, 1440, 1440]
    now += RULES.longest_s
    [anew] = start_avoidances(failures("1", "1", "2", time=now), {"a": record}, RULES, now=now)
    assert (anew.until - now) / 60 == 30


def test_failures_before_a_node_was_restored_do_not_count() -> None:
    record = NodeRecord(name="a", restored_at=NOW - 5)
    assert start_avoidances(failures("1", "1", "2"), {"a": record}, RULES, now=NOW) == []
    later = failures("1", "1", "2", time=NOW - 4)
    assert start_avoidances(later, {"a": record}, RULES, now=NOW)


def avoided(name: str, since: float) -> NodeRecord:
    return NodeRecord(
        name=name,
        avoided_since=since,
        avoided_until=NOW + 60,
        avoided_because="3 failures of workers of 2 jobs",
    )


def test_beyond_half_of_the_nodes_those_avoided_last_are_used() -> None:
    records = {name: avoided(name, NOW - age) for name, age in [("a", 30), ("b", 10), ("c", 20)]}
    states = find_states(records, of_one_kind(NAMES), NOW)
    assert [states[name].value for name in NAMES] == [
        "AVOIDED",
        "FAILING",
        "AVOIDED",
        "AVAILABLE",
        "AVAILABLE",
    ]
    assert "at most half of the nodes" in describe_node_state(records["b"], states["b"])


def test_cordoned_nodes_count_towards_the_half() -> None:
    records = {"a": avoided("a", NOW - 1), "b": NodeRecord(name="b", cordoned_at=NOW)}
    assert find_states(records, of_one_kind("abc"), NOW)["a"] is NodeState.FAILING
    assert find_states(records, of_one_kind("abcd"), NOW)["a"] is NodeState.AVOIDED


def test_the_only_node_is_never_avoided() -> None:
    assert find_states({"a": avoided("a", NOW - 1)}, {"a": False}, NOW)["a"] is NodeState.FAILING


def test_a_clock_that_is_set_back_ends_an_avoidance() -> None:
    assert not avoided("a", NOW).is_avoided(NOW - 3600)


def test_a_node_that_takes_no_workers_is_named_with_the_way_out() -> None:
    record = replace(avoided("gpu-7", NOW), avoided_until=NOW)
    assert describe_node_state(record, NodeState.AVOIDED) == (
        "node gpu-7 is avoided until 2027-01-15 08:00 UTC after 3 failures of workers of 2 jobs;"
        " an operator can restore it with 'accordion node restore gpu-7'"
    )
    cordoned = NodeRecord(
        name="gpu-7", cordoned_at=NOW, cordoned_by="ada", cordon_reason="new GPUs"
    )
    assert describe_node_state(cordoned, NodeState.CORDONED) == (
        "node gpu-7 is cordoned by ada: new GPUs; an operator can restore it with 'accordion node"
        " restore gpu-7'"
    )
