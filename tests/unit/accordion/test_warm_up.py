"""The warm-up: first steps of a run in which all layers are at `none` or `half`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from accordion.base.errors import ConfigError
from accordion.base.messages import Override
from accordion.config import Config, WarmUp
from tests.unit.accordion.reports import controller, histories, report

WARM_UP = WarmUp(steps=25, level="half")


def levels(decision) -> set[str]:
    return {level.name for level in decision.level_by_layer.values()}


def test_all_layers_are_at_the_warm_ups_level_until_its_last_step() -> None:
    ours = controller(warm_up=WARM_UP)
    assert levels(ours.decision) == {"half"}
    assert "the warm-up holds all layers at half until step 25" in ours.decision.reason
    assert levels(ours.decide(report(0, 1.0))) == {"half"}
    ended = ours.end_warm_up(epoch=2)
    assert (ended.epoch, ended.step, ended.cause) == (2, 25, "warm_up")
    assert ended.reason == "the warm-up of 25 steps at half ends"
    assert levels(ended) == {"low"}


def test_regimes_are_compared_during_the_warm_up() -> None:
    ours = controller(warm_up=WARM_UP)
    ours.decide(report(0, 1.0))
    assert levels(ours.decide(report(1, 1.0))) == {"half"}
    assert set(ours.decision.regime_by_layer.values()) == {"stable"}
    assert levels(ours.end_warm_up(epoch=2)) == {"high"}


def test_a_run_without_a_warm_up_starts_at_the_policys_levels() -> None:
    assert levels(controller().decision) == {"low"}


def test_an_override_holds_during_the_warm_up_and_outlives_it() -> None:
    ours = controller(warm_up=WARM_UP)
    held = ours.override([Override(id="o", level="high", layers=("fc*",))], epoch=0, step=3)
    assert {name: level.name for name, level in held.level_by_layer.items()} == {
        "fc1.weight": "high",
        "fc2.weight": "high",
        "head.weight": "half",
    }
    assert {level.name for level in held.policy_level_by_layer.values()} == {"half"}
    ended = ours.end_warm_up(epoch=2)
    assert ended.override_by_layer.keys() == {"fc1.weight", "fc2.weight"}
    assert ended.level_by_layer["head.weight"].name == "low"


def test_an_override_that_is_cancelled_gives_the_layers_back_to_the_warm_up() -> None:
    ours = controller(warm_up=WARM_UP)
    ours.override([Override(id="o", level="high")], epoch=0, step=3)
    assert levels(ours.override([], epoch=0, step=4)) == {"half"}
    assert levels(ours.override([], epoch=2, step=25)) == {"low"}


@given(histories())
def test_a_controller_that_only_gets_reports_decides_alike(made) -> None:
    told, quiet = controller(warm_up=WARM_UP), controller(warm_up=WARM_UP)
    for item in made:
        if item.step >= WARM_UP.steps > told.decision.step:
            told.end_warm_up(epoch=item.epoch)
        assert repr(told.decide(item)) == repr(quiet.decide(item))


@pytest.mark.parametrize("reports", [1, 2, 3])
def test_a_saved_controller_goes_on_where_its_warm_up_was(reports) -> None:
    ours, other = controller(warm_up=WARM_UP), controller(warm_up=WARM_UP)
    for epoch in range(reports):
        ours.decide(report(epoch, 1.0))
    other.load_state_dict(json.loads(json.dumps(ours.state_dict())))
    assert other.policy_levels == ours.policy_levels
    following = report(reports, 1.0)
    assert other.decide(following) == ours.decide(following)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"steps": 0}, "steps=0; give a whole number, at least 1, or warm_up=None"),
        ({"steps": 1.5}, "steps=1.5"),
        ({"steps": 5, "level": "low"}, "level='low'; known are none, half"),
    ],
)
def test_a_warm_up_without_steps_or_with_another_level_is_refused(fields, sentence) -> None:
    with pytest.raises(ConfigError) as raised:
        WarmUp(**fields)
    assert sentence in str(raised.value)


def test_settings_with_another_warm_up_are_other_settings() -> None:
    assert repr(Config(warm_up=WARM_UP)) != repr(Config(warm_up=replace(WARM_UP, steps=26)))
