"""Messages go through JSON unchanged; a digest names a plan."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.messages import (
    Decision,
    Level,
    Override,
    decision_from_json,
    plan_digest,
    to_json,
)
from tests.unit.accordion.reports import controller, histories

NAMES = st.text(max_size=5)
LEVELS = st.builds(
    Level,
    name=NAMES,
    method=st.sampled_from(["none", "half", "powersgd"]),
    options=st.dictionaries(NAMES, st.booleans() | st.integers() | st.text(max_size=3), max_size=2),
)
PLANS = st.dictionaries(NAMES, LEVELS, max_size=4)


@given(history=histories())
def test_a_decision_goes_through_json_unchanged(history) -> None:
    ours = controller()
    for item in history:
        decision = ours.decide(item)
        assert (
            decision_from_json(json.loads(json.dumps(to_json(decision), allow_nan=False)))
            == decision
        )


@pytest.mark.parametrize("name", [field.name for field in fields(Decision)])
def test_a_decision_with_a_field_that_is_missing_is_no_decision(name: str) -> None:
    data = to_json(controller().decision)
    del data[name]
    with pytest.raises(KeyError, match=name):
        decision_from_json(data)


@given(plan=PLANS)
def test_a_digest_does_not_depend_on_the_order_of_layers_or_options(plan: dict[str, Level]) -> None:
    turned = {
        name: Level(
            name=level.name, method=level.method, options=dict(reversed(level.options.items()))
        )
        for name, level in reversed(plan.items())
    }
    assert plan_digest(plan) == plan_digest(turned)


@given(one=PLANS, other=PLANS)
def test_two_plans_share_a_digest_exactly_when_methods_and_options_agree(one, other) -> None:
    def content(plan: dict[str, Level]) -> str:
        return json.dumps(
            {name: [level.method, level.options] for name, level in plan.items()}, sort_keys=True
        )

    assert (plan_digest(one) == plan_digest(other)) == (content(one) == content(other))


def test_the_name_of_a_level_is_no_part_of_the_plan() -> None:
    named = Level(name="low", method="powersgd", options={"rank": 2})
    given_by_hand = Level(name="rank=2", method="powersgd", options={"rank": 2})
    assert plan_digest({"a": named}) == plan_digest({"a": given_by_hand})


def test_messages_are_frozen() -> None:
    decision: Decision = controller().decision
    with pytest.raises(AttributeError):
        decision.epoch = 3  # type: ignore[misc]


def test_a_decision_that_a_person_took_goes_through_json_unchanged() -> None:
    decision = controller().override([Override(id="o1", level={"rank": 2})], epoch=0, step=3)
    again = decision_from_json(json.loads(json.dumps(to_json(decision))))
    assert again == decision
    assert {level.name for level in again.policy_level_by_layer.values()} == {"low"}


@given(one=st.none() | st.integers(1, 99), other=st.none() | st.integers(1, 99))
def test_two_plans_of_another_batch_are_other_plans(one, other) -> None:
    plan = {"a": Level(name="low", method="none")}
    assert (plan_digest(plan, one) == plan_digest(plan, other)) == (one == other)
