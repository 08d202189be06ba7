"""Plans that mix methods: other ladders for the layers that a glob names."""

from __future__ import annotations

import pytest
from hypothesis import given

from accordion.base.errors import ConfigError, OverrideError
from accordion.base.messages import Decision, Override
from accordion.config import LayerPlan
from accordion.decide.controller import Controller
from tests.unit.accordion.reports import NAMES, controller, histories, report

TOPK = LayerPlan(method="topk", low={"density": 0.2}, high={"density": 0.05})
MIXED = {"fc*": TOPK}


def mixed(**settings: object) -> Controller:
    return controller(method="powersgd", by_layer=MIXED, **settings)


def methods(decision: Decision) -> list[str]:
    return [decision.level_by_layer[name].method for name in NAMES]


def options(decision: Decision, layer: str) -> dict[str, object]:
    return dict(decision.level_by_layer[layer].options)


def test_layers_that_a_glob_names_have_their_own_method_and_levels() -> None:
    ours = mixed()
    ours.decide(report(0, 1.0))
    decision = ours.decide(report(1, {"fc1.weight": 1.0, "fc2.weight": 3.0, "head.weight": 1.0}))
    assert methods(decision) == ["topk", "topk", "powersgd"]
    assert [decision.level_by_layer[name].name for name in NAMES] == ["high", "low", "high"]
    assert [options(decision, name)["density"] for name in NAMES[:2]] == [0.05, 0.2]
    assert options(decision, "head.weight")["rank"] == 1


def test_the_first_glob_that_matches_wins() -> None:
    plans = {"fc1*": LayerPlan(method="half"), "fc*": TOPK, "*": LayerPlan(method="none")}
    assert methods(controller(by_layer=plans).decision) == ["half", "topk", "none"]


@given(history=histories())
def test_regimes_and_names_of_levels_do_not_depend_on_the_methods(history) -> None:
    plain, other = controller(), mixed()
    for item in history:
        one, two = plain.decide(item), other.decide(item)
        assert one.regime_by_layer == two.regime_by_layer
        assert [one.level_by_layer[n].name for n in NAMES] == [
            two.level_by_layer[n].name for n in NAMES
        ]


@pytest.mark.parametrize("level", ["high", 1])
def test_a_rung_by_hand_is_the_rung_of_each_layers_own_ladder(level) -> None:
    decision = mixed().override([Override(id="o1", level=level)], epoch=0, step=0)
    assert methods(decision) == ["topk", "topk", "powersgd"]
    assert {made.name for made in decision.level_by_layer.values()} == {"high"}
    assert decision.reason == "override o1 holds 3 of 3 layers at high"


def test_options_by_hand_are_those_of_each_layers_own_method() -> None:
    ours = mixed()
    decision = ours.override(
        [Override(id="o1", level={"density": 0.5}, layers=("fc*",))], epoch=0, step=0
    )
    assert options(decision, "fc1.weight")["density"] == 0.5
    with pytest.raises(OverrideError, match=r"override o2: topk level .* has no option 'rank'"):
        ours.override([Override(id="o2", level={"rank": 2})], epoch=0, step=0)


def test_a_method_by_hand_holds_for_all_layers_whatever_their_own() -> None:
    decision = mixed().override([Override(id="o1", level={"method": "none"})], epoch=0, step=0)
    assert methods(decision) == ["none"] * 3


def test_a_saved_controller_goes_on_with_the_same_plans() -> None:
    ours, other = mixed(), mixed()
    ours.override([Override(id="o1", level="high", layers=("fc*",))], epoch=0, step=0)
    other.load_state_dict(ours.state_dict())
    assert other.decide(report(0, 1.0)) == ours.decide(report(0, 1.0))


def test_a_glob_without_a_layer_is_refused_with_the_layers() -> None:
    with pytest.raises(
        ConfigError,
        match=r"no layer matches 'FC\*'; layers are fc1.weight, fc2.weight, head.weight",
    ):
        controller(by_layer={"fc*": TOPK, "FC*": TOPK})


def test_a_glob_whose_layers_are_all_taken_by_earlier_ones_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"fc1.weight of glob 'fc1\*' are taken by globs before it"
    ):
        controller(by_layer={"fc*": TOPK, "fc1*": LayerPlan(method="half")})


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "zip"},
        {"method": "topk", "low": {"rank": 2}},
        {"method": "powersgd", "low": {"rank": 0}},
    ],
)
def test_a_plan_that_no_method_takes_is_refused_where_it_is_born(settings) -> None:
    with pytest.raises(ConfigError):
        LayerPlan(**settings)
