"""Local steps as a level: what a user may set, for how long, and what the policy does after it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.errors import OverrideError
from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Override, Report, decision_from_json, to_json
from accordion.config import BatchConfig, WarmUp
from accordion.decide.controller import Controller
from tests.unit.accordion.reports import controller, histories, report

LADDER = LocalSteps(low=4, high=16)


def rounds(local: LocalSteps | None = LADDER, **settings: object) -> Controller:
    return controller(method="half", local_steps=local, **settings)


def by_hand(level: object, **fields: object) -> Override:
    return Override(**{"id": "o1", "target": "local_steps", "level": level, **fields})


def in_force(ours: Controller) -> tuple[object, ...]:
    made = ours.decision
    return made.local_steps, made.local_steps_override, made.policy_local_steps


@pytest.mark.parametrize(("level", "length"), [("low", 4), ("high", 16), (1, 1), (9, 9), (16, 16)])
def test_a_user_sets_a_level_or_a_number_of_steps(level, length) -> None:
    ours = rounds()
    decision = ours.override([by_hand(level, until=9)], epoch=2, step=21)
    assert in_force(ours) == (length, "o1", 4)
    assert decision.reason == f"override o1 holds local steps at {length} until epoch 9"
    assert (decision.override_ids, decision.override_by_layer) == (("o1",), {})


def test_the_policy_has_the_rounds_again_where_an_override_ends() -> None:
    ours = rounds()
    ours.override([by_hand(2, until=2)], epoch=0, step=0)
    assert "override o1 holds local steps at 2" in ours.decide(report(0, next_lr=0.05)).reason
    assert in_force(ours) == (2, "o1", 8)
    ours.decide(report(1, lr=0.05))
    assert in_force(ours) == (8, None, None)


def test_a_saved_override_beyond_what_a_budget_allows_now_holds_rounds_at_their_most() -> None:
    ours, smaller = rounds(), rounds(LocalSteps(low=3, high=12))
    ours.override([by_hand(16)], epoch=0, step=0)
    smaller.load_state_dict(ours.state_dict())
    smaller.decide(report(0))
    assert in_force(smaller) == (12, "o1", 3)


def test_an_override_that_is_cancelled_gives_the_rounds_back() -> None:
    ours = rounds()
    ours.override([by_hand(2)], epoch=0, step=0)
    decision = ours.override([], epoch=0, step=4)
    assert in_force(ours) == (4, None, None)
    assert decision.reason == "no override holds in epoch 0: the policy decides"


def test_an_override_replaces_the_start_while_it_holds() -> None:
    ours = rounds(replace(LADDER, start_steps=25))
    ours.override([by_hand(8, until=1)], epoch=0, step=3)
    assert in_force(ours) == (8, "o1", 1)
    ours.decide(report(0))
    assert in_force(ours) == (1, None, None)


def test_an_override_outlives_the_start() -> None:
    ours = rounds(replace(LADDER, start_steps=25))
    ours.override([by_hand(8)], epoch=0, step=3)
    decision = ours.end_start(epoch=2, step=25)
    assert in_force(ours) == (8, "o1", 4)
    assert decision.reason.endswith("; override o1 holds local steps at 8")


def test_an_override_of_one_step_lengthens_the_start() -> None:
    ours = rounds(replace(LADDER, start_steps=5))
    ours.override([by_hand(1, until=1)], epoch=0, step=3)
    ours.end_start(epoch=0, step=5)
    assert in_force(ours) == (1, "o1", 4)
    ours.decide(report(0))
    assert in_force(ours) == (4, None, None)


def test_an_override_holds_at_the_end_of_the_warm_up_too() -> None:
    ours = rounds(warm_up=WarmUp(steps=5))
    ours.override([by_hand(8)], epoch=0, step=3)
    ours.end_warm_up(epoch=0)
    assert in_force(ours) == (8, "o1", 4)


def test_of_two_overrides_of_local_steps_the_larger_number_holds() -> None:
    ours = rounds()
    newer, older = by_hand(9, number=3), by_hand(2, number=2, id="o2")
    ours.override([newer, older], epoch=0, step=0)
    assert in_force(ours) == (9, "o1", 4)


def test_overrides_of_all_targets_hold_beside_each_other() -> None:
    ours = rounds(batch=BatchConfig(low=64, high=512))
    batch = Override(id="o2", target="batch", level="high")
    decision = ours.override(
        [by_hand(2), batch, Override(id="o3", level={"method": "none"})], epoch=0, step=0
    )
    assert (decision.local_steps, decision.global_batch) == (2, 512)
    assert decision.override_ids == ("o1", "o2", "o3")
    assert decision.reason == (
        "override o1 holds local steps at 2; override o2 holds the global batch at 512; override o3"
        " holds 3 of 3 layers at none; all layers count as critical: the global batch has grown 8"
        " times, the learning rate has fallen 1 times"
    )


@pytest.mark.parametrize("level", ["middle", 0, -4, True, 4.0, {"rank": 2}])
def test_a_level_that_is_none_is_refused_with_what_is_known(level) -> None:
    known = r"known are low \(4\), high \(16\), or a number from 1, .*, to 16"
    with pytest.raises(OverrideError, match=known):
        rounds().check_override(by_hand(level))


def test_more_steps_than_high_are_refused_with_the_limit() -> None:
    with pytest.raises(OverrideError, match=r"level is 17 local steps; .* at most 16"):
        rounds().check_override(by_hand(17))


def test_rounds_of_some_layers_are_refused() -> None:
    with pytest.raises(OverrideError, match="apply to the whole model; leave out the layers"):
        rounds().check_override(by_hand("low", layers=("fc*",)))


def test_without_local_steps_in_the_settings_their_override_is_refused() -> None:
    with pytest.raises(OverrideError, match="this job has no local_steps, so its workers exchange"):
        rounds(None).check_override(by_hand(4))


def continued(ours: Controller) -> Controller:
    """A controller with the saved state of another one."""
    saved = json.loads(json.dumps(ours.state_dict(), allow_nan=False))
    again = rounds()
    again.load_state_dict(saved)
    return again


@given(history=histories(), cut=st.integers(0, 7), until=st.none() | st.integers(1, 9))
def test_an_override_survives_saving_and_leaves_the_policy_alone(
    history: list[Report], cut: int, until: int | None
) -> None:
    plain, ours = rounds(), rounds()
    ours.override([by_hand(2, until=until)], epoch=0, step=0)
    for position, item in enumerate(history):
        ours = continued(ours) if position == cut else ours
        policys, made = plain.decide(item), ours.decide(item)
        assert decision_from_json(json.loads(json.dumps(to_json(made)))) == made
        assert made.level_by_layer == policys.level_by_layer
        holds = until is None or made.epoch < until
        held = (2, "o1", policys.local_steps)
        assert in_force(ours) == (held if holds else (policys.local_steps, None, None))
