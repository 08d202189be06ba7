"""The policy `cost_aware`: the cheapest choice that the regime allows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.messages import Level
from accordion.config import Config
from accordion.decide.controller import Controller
from accordion.policies import POLICIES, PolicyInput
from accordion.policies.cost_aware import RETRY_REPORTS
from tests.unit.accordion.reports import LAYERS, NAMES, report

POLICY = POLICIES["cost_aware"]
CHOICES = ("none", "half", "low", "high")
LADDER = tuple(Level(name=name, method="none") for name in ("low", "high"))
STABLE, MIXED = {"a": "stable", "b": "stable"}, {"a": "stable", "b": "critical"}


def told(
    regimes, costs, *, state=None, wait_s=None, step_s=None, link=None, level="low", **group
) -> PolicyInput:
    return PolicyInput(
        level_by_layer=dict.fromkeys(regimes, level),
        **{"world_size": 2, "global_batch": 64, **group},
        epoch=1,
        regime_by_layer=regimes,
        ladder_by_layer=dict.fromkeys(regimes, LADDER),
        size_by_layer=dict.fromkeys(regimes, 1),
        options={"saving": 0.05, "wait_share": 0.05},
        state=state or {},
        cost_s_by_layer={layer: dict(zip(CHOICES, costs, strict=True)) for layer in regimes},
        exchange_wait_s=wait_s,
        step_s=step_s,
        link=link or {},
    )


def after(seen: PolicyInput) -> PolicyInput:
    return replace(seen, state=POLICY.observe_report(seen))


@given(st.lists(st.floats(0, 10), min_size=4, max_size=4))
def test_no_choice_is_cheaper_than_the_one_that_is_made(costs) -> None:
    seen = after(told(STABLE, costs))
    assert costs[CHOICES.index(seen.state["choice"])] == min(costs)
    assert set(POLICY.decide_levels(seen).values()) == {seen.state["choice"]}


@pytest.mark.parametrize(
    ("costs", "levels"),
    [
        ((4.0, 2.0, 1.0, 0.5), {"a": "high", "b": "low"}),
        ((4.0, 2.0, 0.3, 0.5), {"a": "low", "b": "low"}),
        ((0.0, 0.0, 0.0, 0.0), {"a": "none", "b": "none"}),
        ((4.0, 0.1, 1.0, 0.5), {"a": "half", "b": "half"}),
    ],
)
def test_critical_layers_take_light_levels_only(costs, levels) -> None:
    assert POLICY.decide_levels(after(told(MIXED, costs))) == levels


def test_a_small_saving_does_not_change_the_choice() -> None:
    state = after(told(STABLE, (1.0, 2.0, 3.0, 4.0))).state
    assert after(told(STABLE, (1.0, 0.96, 3.0, 4.0), state=state)).state["choice"] == "none"
    assert after(told(STABLE, (1.0, 0.94, 3.0, 4.0), state=state)).state["choice"] == "half"


@pytest.mark.parametrize("costs", [{}, {"a": {"none": 1.0}}, {"a": {}, "b": {}}])
def test_without_all_costs_the_levels_follow_the_regimes(costs) -> None:
    seen = after(replace(told(MIXED, (1, 1, 1, 1)), cost_s_by_layer=costs))
    assert POLICY.decide_levels(seen) == {"a": "high", "b": "low"}
    said = POLICY.explain_levels(seen)
    assert "no costs are measured yet" in said
    assert "needs two workers or more, on CPUs, and buckets_per_exchange auto" in said


def test_a_choice_outlives_reports_without_costs() -> None:
    state = after(told(STABLE, (0.0, 1.0, 1.0, 1.0))).state
    later = after(replace(told(STABLE, (1, 1, 1, 1), state=state), cost_s_by_layer={}))
    assert POLICY.decide_levels(later) == {"a": "none", "b": "none"}


def test_the_reason_gives_costs_link_and_the_last_prediction() -> None:
    link = {"latency_s": 0.0002, "bytes_per_s": 12e6}
    state = after(told(STABLE, (1.8, 0.9, 0.009, 0.006), link=link)).state
    costs = (1.8, 0.9, 0.009, 0.006)
    seen = after(told(STABLE, costs, state=state, wait_s=0.013, link=link, level="high"))
    assert POLICY.explain_levels(seen) == (
        "high is chosen because a step waits for its exchanges high 12 ms, low 18 ms,"
        " half 1800 ms, none 3600 ms at 96 Mbit/s and 0.2 ms per message;"
        " predicted 12 ms, measured 13 ms"
    )


def step_of(state, rest_s, *, waits=(0.005, 0.01, 0.02, 0.03), bytes_per_s=1e8, **changes):
    """What the policy sees and keeps after a window at its choice, in which all waited as
    predicted.
    """
    changes = {"level": state.get("choice", "low"), **changes}
    wait_s = waits[CHOICES.index(changes["level"])] if changes["level"] in CHOICES else 0.0
    link = {"latency_s": 0.0, "bytes_per_s": bytes_per_s}
    costs = [wait / len(STABLE) for wait in waits]
    step_s = None if rest_s is None else rest_s + wait_s
    return after(
        told(STABLE, costs, state=state, wait_s=wait_s, step_s=step_s, link=link, **changes)
    )


def settled_at_low():
    """After windows at `low`, at `none` and at `half`, which were both slower."""
    return step_of(step_of(step_of({}, 0.3).state, 0.35).state, 0.33)


def test_a_choice_that_slows_the_rest_of_the_step_is_left_again() -> None:
    first = step_of({}, 0.3)
    assert first.state["choice"] == "none"
    second = step_of(first.state, 0.35)
    assert second.state["choice"] == "half"
    third = step_of(second.state, 0.33)
    assert third.state["choice"] == "low"
    assert "none slowed the rest of the step down by 50 ms" in POLICY.explain_levels(third)
    assert step_of(third.state, 0.3).state["choice"] == "low"


WHERE_NONE_WAITS_LONGER = {"waits": (0.03, 0.05, 0.02, 0.025), "beside_s": 0.02}


@pytest.mark.parametrize(("rest_s", "kept"), [(0.27, "none"), (0.3, "low")])
def test_no_encoding_is_tried_once_where_encoding_may_slow_the_step_down(rest_s, kept) -> None:
    first = step_of({}, 0.3, **WHERE_NONE_WAITS_LONGER)
    assert first.state["choice"] == "none"
    assert "it is tried, because encoding beside the backward pass took 20 ms" in (
        POLICY.explain_levels(first)
    )
    seen, choices = step_of(first.state, rest_s, **WHERE_NONE_WAITS_LONGER), []
    for _ in range(RETRY_REPORTS - 3):
        choices.append(seen.state["choice"])
        rest_now = rest_s if choices[-1] == "none" else 0.3
        seen = step_of(seen.state, rest_now, **WHERE_NONE_WAITS_LONGER)
    assert set(choices[1:]) == {kept}


def test_no_encoding_is_not_tried_where_it_waits_longer_than_encoding_takes() -> None:
    waits = (0.06, 0.05, 0.02, 0.025)
    assert step_of({}, 0.3, waits=waits, beside_s=0.02).state["choice"] == "low"


def test_a_step_longer_than_predicted_slows_down_too() -> None:
    """Another worker may be the slower one, for which rank 0 waits."""
    first = step_of({}, 0.3)
    waits_longer = replace(
        told(STABLE, (0.0025, 0.005, 0.01, 0.015), state=first.state, level="none"),
        exchange_wait_s=0.08,
        step_s=0.38,
        link=first.link,
    )
    assert after(waits_longer).state["choice"] == "half"


def test_differences_within_noise_do_not_change_the_choice() -> None:
    assert step_of(step_of({}, 0.3).state, 0.314).state["choice"] == "none"


def test_what_changes_all_steps_alike_changes_no_choice() -> None:
    busier = step_of(settled_at_low().state, 0.5)
    assert busier.state["choice"] == "low"
    assert busier.state["rests"]["seconds"]["none"] == pytest.approx(0.55)


@pytest.mark.parametrize("group", [{"world_size": 4}, {"global_batch": 512}])
def test_steps_of_other_groups_and_batches_are_not_compared(group) -> None:
    """Eight times the batch in the first window of `none` is no slowdown by `none`."""
    first = step_of({}, 0.3)
    second = step_of(first.state, 2.4, **group)
    assert second.state["choice"] == "none"
    assert second.state["rests"]["seconds"] == {"none": pytest.approx(2.4)}


def test_another_link_gives_every_choice_a_new_chance() -> None:
    low = settled_at_low()
    assert low.state["choice"] == "low"
    # One slow probe is no other link.
    once = step_of(low.state, 0.3, bytes_per_s=3e8)
    assert once.state["choice"] == "low"
    assert step_of(once.state, 0.3).state["choice"] == "low"
    twice = step_of(once.state, 0.3, bytes_per_s=3e8)
    assert twice.state["choice"] == "none"
    assert set(twice.state["rests"]["seconds"]) == {"low"}


def test_a_link_that_drifts_away_is_another_one() -> None:
    seen = settled_at_low()
    for speed in (1.8e8, 3.2e8, 3.2e8):
        seen = step_of(seen.state, 0.3, bytes_per_s=speed)
    assert seen.state["choice"] == "none"


def test_a_bandwidth_that_becomes_too_high_to_measure_is_another_link() -> None:
    seen = settled_at_low()
    for _ in range(2):
        seen = step_of(seen.state, 0.3, bytes_per_s=None)
    assert seen.state["choice"] == "none"


def test_a_choice_that_was_left_is_tried_again_later() -> None:
    seen, choices = settled_at_low(), []
    for _ in range(RETRY_REPORTS):
        seen = step_of(seen.state, 0.3)
        choices.append(seen.state["choice"])
    assert set(choices[:-5]) == {"low"}
    assert "none" in choices
    # This time it slows nothing down, and stays.
    for _ in range(3):
        seen = step_of(seen.state, 0.3)
    assert seen.state["choice"] == "none"


def test_steps_under_an_override_say_nothing_about_a_choice() -> None:
    first = step_of({}, 0.3)
    assert first.state["choice"] == "none"
    overridden = step_of(first.state, 0.4, level="rank=2")
    assert overridden.state["choice"] == "none"
    assert set(overridden.state["rests"]["seconds"]) == {"low"}
    # An override to another choice measures that one.
    overridden = step_of(first.state, 0.4, level="half")
    assert set(overridden.state["rests"]["seconds"]) == {"low", "half"}


def test_a_window_without_a_measured_step_changes_nothing() -> None:
    low = settled_at_low()
    rests = step_of(low.state, None).state["rests"]
    assert rests["seconds"] == low.state["rests"]["seconds"]


def test_a_rest_of_zero_is_a_rest() -> None:
    assert step_of(step_of({}, 0.0).state, 0.0).state["choice"] == "none"


def test_a_state_that_was_saved_before_steps_were_measured_goes_on() -> None:
    state = {"choice": "half", "cost_s": {"half": 0.01}, "last_predicted_s": None}
    assert step_of(state | {"last_measured_s": None}, 0.3).state["choice"] == "none"


def test_a_controller_decides_by_reported_costs_and_says_why() -> None:
    controller = Controller(Config(policy="cost_aware"), LAYERS)
    assert {level.name for level in controller.decision.level_by_layer.values()} == {"low"}
    costs = {name: {"none": 0.3, "half": 0.01, "low": 0.2, "high": 0.1} for name in NAMES}
    decision = controller.decide(report(0, 1.0, cost_s_by_layer=costs))
    assert {level.method for level in decision.level_by_layer.values()} == {"half"}
    assert "half is chosen" in decision.reason
    again = Controller(Config(policy="cost_aware"), LAYERS)
    again.load_state_dict(json.loads(json.dumps(controller.state_dict())))
    assert again.policy_levels == controller.policy_levels


def test_a_controller_compares_the_reported_steps_also_after_a_resume() -> None:
    costs = {name: {"none": 0.01, "half": 0.02, "low": 0.03, "high": 0.04} for name in NAMES}
    measured = {"cost_s_by_layer": costs, "exchange_wait_s": 0.03}
    controller = Controller(Config(policy="cost_aware"), LAYERS)
    decision = controller.decide(report(0, 1.0, step_s=0.39, **measured))
    assert {level.method for level in decision.level_by_layer.values()} == {"none"}
    again = Controller(Config(policy="cost_aware"), LAYERS)
    again.load_state_dict(json.loads(json.dumps(controller.state_dict())))
    decision = again.decide(report(1, 1.0, step_s=0.63, **measured))
    assert {level.method for level in decision.level_by_layer.values()} == {"half"}
    assert "none slowed the rest of the step down by 300 ms" in decision.reason
