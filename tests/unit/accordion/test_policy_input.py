"""What a new policy needs: one row of the table; its state, costs and the answer "none" come with
it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from accordion.base.errors import ConfigError
from accordion.base.messages import Override
from accordion.config import BatchConfig
from accordion.decide.controller import Controller
from accordion.policies import POLICIES, Policy, PolicyInput
from tests.unit.accordion.reports import NAMES, controller, report


def remember_costs(policy_input: PolicyInput) -> Mapping[str, Any]:
    return dict(policy_input.cost_s_by_layer) or policy_input.state


def cheapest(policy_input: PolicyInput) -> dict[str, str]:
    """A toy: a critical layer is never compressed hard, and every other takes what costs least, or
    no compression.
    """
    names = {}
    for layer, regime in policy_input.regime_by_layer.items():
        costs = policy_input.state.get(layer) or {"low": 0.0}
        allowed = [
            name
            for name in costs
            if regime == "stable" or name != policy_input.ladder_by_layer[layer][-1].name
        ]
        names[layer] = min(allowed, key=costs.__getitem__)
    return names


COST_AWARE = Policy(
    summary="a toy",
    decide_levels=cheapest,
    observe_report=remember_costs,
)
COSTS = {
    "fc1.weight": {"none": 0.9, "low": 0.5, "high": 0.2},
    "fc2.weight": {"none": 0.1, "low": 0.5, "high": 0.2},
    "head.weight": {"none": 0.9, "low": 0.8, "high": 0.7},
}


@pytest.fixture(autouse=True)
def toys(monkeypatch) -> None:
    wrong = replace(
        COST_AWARE,
        decide_levels=lambda policy_input: dict.fromkeys(policy_input.regime_by_layer, "middle"),
    )
    monkeypatch.setitem(POLICIES, "cost_aware", COST_AWARE)
    monkeypatch.setitem(POLICIES, "wrong", wrong)


def levels(ours: Controller) -> list[str]:
    return [ours.decision.level_by_layer[name].name for name in NAMES]


def measured(ours: Controller, *, costs: Mapping[str, Mapping[str, float]] = COSTS) -> Controller:
    """After two windows, in which only the head's gradient changed."""
    ours.decide(report(0, 1.0))
    ours.decide(
        report(1, {"fc1.weight": 1.0, "fc2.weight": 1.0, "head.weight": 9.0}, cost_s_by_layer=costs)
    )
    return ours


def test_a_cost_aware_policy_is_one_row_and_may_answer_that_compression_does_not_pay() -> None:
    ours = measured(controller(policy="cost_aware"))
    assert levels(ours) == ["high", "none", "low"]
    dense = ours.decision.level_by_layer["fc2.weight"]
    assert (dense.method, dict(dense.options)) == ("none", {})


def test_before_anything_is_measured_it_is_asked_without_costs() -> None:
    assert levels(controller(policy="cost_aware")) == ["low"] * 3


def test_what_a_policy_learned_holds_where_it_is_asked_without_a_report() -> None:
    ours = measured(controller(policy="cost_aware"))
    ours.override([Override(id="o1", level="high", layers=("head*",))], epoch=2, step=25)
    assert levels(ours) == ["high", "none", "high"]
    ours.override([], epoch=2, step=26)
    assert levels(ours) == ["high", "none", "low"]


def test_what_a_policy_learned_survives_a_crash() -> None:
    ours, other = measured(controller(policy="cost_aware")), controller(policy="cost_aware")
    other.load_state_dict(json.loads(json.dumps(ours.state_dict(), allow_nan=False)))
    assert other.policy_levels == ours.policy_levels
    assert other.decide(report(2, None)) == ours.decide(report(2, None))
    assert levels(other) == ["high", "none", "low"]


def test_the_state_of_another_policy_is_left_behind() -> None:
    other = controller(policy="adaqs")
    other.load_state_dict(measured(controller(policy="cost_aware")).state_dict())
    assert {level.name for level in other.policy_levels.values()} == {"high"}
    assert other.state_dict()["policy"] == {"name": "adaqs", "state": {}}


def test_costs_are_part_of_the_question() -> None:
    ours = measured(controller(policy="cost_aware"))
    again = {layer: dict(reversed(costs.items())) for layer, costs in reversed(COSTS.items())}
    last = report(
        1, {"fc1.weight": 1, "fc2.weight": 1.0, "head.weight": 9.0}, cost_s_by_layer=again
    )
    assert ours.decide(last) is ours.decision


def test_a_level_that_is_on_no_ladder_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError,
        match=r"wrong chooses 'middle' for layer fc1\.weight; known are low, high, none",
    ):
        controller(policy="wrong")


def test_a_policy_that_picks_a_wrong_level_later_leaves_the_controller_as_it_was() -> None:
    ours = controller(policy="cost_aware", batch=BatchConfig(low=8, high=64))
    ours.decide(report(0, 1.0))
    before = ours.state_dict()
    with pytest.raises(ConfigError, match="chooses 'middle'"):
        ours.decide(report(1, 1.0, cost_s_by_layer={name: {"middle": 0.0} for name in NAMES}))
    assert ours.state_dict() == before


def test_what_the_policy_would_pick_is_told_for_the_layers_that_a_person_decided() -> None:
    decision = controller().override(
        [Override(id="o1", level="high", layers=("fc*",))], epoch=0, step=3
    )
    assert {layer: level.name for layer, level in decision.policy_level_by_layer.items()} == {
        "fc1.weight": "low",
        "fc2.weight": "low",
    }


def test_what_an_override_sends_does_not_change_the_level_of_gain() -> None:
    ours = controller(policy="gain")
    ours.override([Override(id="o1", level="high", layers=("fc1*",))], epoch=0, step=0)
    shares = {"fc1.weight": 0.1, "fc2.weight": 0.1, "head.weight": 0.9}
    ours.decide(report(0, 1.0, sent_share_by_layer=shares))
    ours.override([], epoch=1, step=10)
    assert levels(ours) == ["low", "none", "high"]


def test_adaqs_steps_one_level_lighter_and_keeps_its_reference_through_a_crash() -> None:
    ours, other = controller(policy="adaqs"), controller(policy="adaqs")
    ours.decide(report(0, 1.0, rms_by_layer=dict.fromkeys(NAMES, 2.0)))
    assert levels(ours) == ["high"] * 3
    other.load_state_dict(json.loads(json.dumps(ours.state_dict(), allow_nan=False)))
    other.decide(report(1, 1.0, rms_by_layer=dict.fromkeys(NAMES, 2.0) | {"fc1.weight": 8.0}))
    assert levels(other) == ["low", "high", "high"]


def test_levels_are_asked_for_without_what_a_report_brought(monkeypatch) -> None:
    told: list[PolicyInput] = []
    spying = replace(
        COST_AWARE,
        decide_levels=lambda policy_input: told.append(policy_input) or cheapest(policy_input),
    )
    monkeypatch.setitem(POLICIES, "cost_aware", spying)
    measured(controller(policy="cost_aware"))
    assert {(item.cause, item.statistic_by_layer, item.rms_by_layer) for item in told} == {
        (None, None, None)
    }
    assert not any(item.cost_s_by_layer or item.change_by_layer for item in told)


def test_what_a_report_brought_is_told_to_the_policy_that_observes_it(monkeypatch) -> None:
    told: list[PolicyInput] = []
    spying = replace(
        COST_AWARE, observe_report=lambda policy_input: told.append(policy_input) or {}
    )
    monkeypatch.setitem(POLICIES, "cost_aware", spying)
    measured(controller(policy="cost_aware"))
    assert [item.cause for item in told] == ["window", "window"]
    assert told[1].cost_s_by_layer == COSTS
    assert told[1].change_by_layer == {"fc1.weight": 0.0, "fc2.weight": 0.0, "head.weight": 8.0}
