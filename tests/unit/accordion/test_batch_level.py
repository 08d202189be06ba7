"""The level of the global batch: one for the whole model, by the rules that hold for layers."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.errors import OverrideError
from accordion.base.messages import Override, Report, decision_from_json, to_json
from accordion.config import BatchConfig, DetectorConfig
from accordion.decide.controller import Controller
from accordion.decide.detector import init_detector, update_detector
from tests.unit.accordion.reports import NAMES, controller, histories, report

GROWS = BatchConfig(low=64, high=512)
FREE = BatchConfig(low=64, high=512, grow_only=False)
KINDS = st.sampled_from([GROWS, FREE])


def levels(ours: Controller, reports: list[Report]) -> list[str | None]:
    return [ours.decide(item).batch_level for item in reports]


def test_without_a_batch_in_the_settings_none_is_decided() -> None:
    decision = controller().decide(report(0, 1.0))
    assert (decision.batch_level, decision.global_batch) == (None, None)


def test_a_run_starts_with_the_small_batch() -> None:
    start = controller(batch=GROWS).decision
    assert (start.batch_level, start.global_batch) == ("low", 64)


def test_a_stable_model_takes_the_large_batch_and_the_decision_says_why() -> None:
    ours = controller(batch=GROWS)
    ours.decide(report(0, 1.0))
    decision = ours.decide(report(1, 1.25))
    assert (decision.batch_level, decision.global_batch) == ("high", 512)
    assert (
        "; global batch becomes 512: the whole gradient changed by 0.25 (threshold 0.5)"
        in decision.reason
    )
    assert "global batch becomes" not in ours.decide(report(2, 1.25, global_batch=512)).reason


def test_the_model_is_judged_by_all_layers_together() -> None:
    ours = controller(batch=GROWS)
    ours.decide(report(0, {"fc1.weight": 0.1, "fc2.weight": 3.0, "head.weight": 4.0}))
    decision = ours.decide(report(1, {"fc1.weight": 0.9, "fc2.weight": 4.0, "head.weight": 3.0}))
    assert decision.regime_by_layer["fc1.weight"] == "critical"  # by itself it changed by 8
    assert decision.batch_level == "high"


def test_a_dropped_rate_returns_to_the_small_batch_only_where_it_may_shrink() -> None:
    reports = [report(0, 1.0), report(1, 1.0), report(2, 1.0, global_batch=512, next_lr=0.01)]
    assert levels(controller(batch=FREE), reports) == ["low", "high", "low"]
    assert levels(controller(batch=GROWS), reports) == ["low", "high", "high"]
    ours = controller(batch=FREE)
    assert [ours.decide(item) for item in reports][-1].reason.endswith(
        "global batch becomes 64: learning rate drops from 0.1 to 0.01 (limit 0.5 of it)"
    )


def test_the_window_after_a_batch_has_grown_is_not_compared() -> None:
    ours = controller(batch=FREE)
    reports = [
        report(0, 1.0),
        report(1, 1.0),
        report(2, 9.0, global_batch=512),
        report(3, 9.0, global_batch=512),
    ]
    assert levels(ours, reports) == ["low", "high", "high", "high"]
    assert levels(ours, [report(4, 99.0, global_batch=512)]) == ["low"]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_layer_that_is_not_finite_makes_the_whole_model_critical(broken) -> None:
    reports = [
        report(0, 1.0),
        report(1, 1.0),
        report(2, dict.fromkeys(NAMES, 1.0) | {"fc1.weight": broken}),
    ]
    assert levels(controller(batch=FREE), reports) == ["low", "high", "low"]


@given(history=histories())
def test_once_large_a_batch_that_only_grows_stays_large(history) -> None:
    sizes = [level == "high" for level in levels(controller(batch=GROWS), history)]
    assert sizes == sorted(sizes)


@given(history=histories(), batch=KINDS)
def test_the_batch_is_as_large_as_the_regime_of_a_model_of_one_layer_says(history, batch) -> None:
    state, high = init_detector(("all",)), False
    for item, level in zip(history, levels(controller(batch=batch), history), strict=True):
        given_ = item.statistic_by_layer
        whole = None if given_ is None else {"all": math.hypot(*given_.values())}
        state, _ = update_detector(state, replace(item, statistic_by_layer=whole), DetectorConfig())
        high = state.regime_by_layer["all"] == "stable" or (high and batch.grow_only)
        assert level == ("high" if high else "low")


@given(history=histories(), batch=KINDS, cut=st.integers(0, 7))
def test_saved_loaded_and_continued_equals_never_stopped(history, batch, cut) -> None:
    straight, stopped = controller(batch=batch), controller(batch=batch)
    for position, item in enumerate(history):
        if position == cut:
            saved = json.loads(json.dumps(stopped.state_dict(), allow_nan=False, sort_keys=True))
            stopped = controller(batch=batch)
            stopped.load_state_dict(saved)
        decision = straight.decide(item)
        assert decision == stopped.decide(item)
        assert (
            decision_from_json(json.loads(json.dumps(to_json(decision), allow_nan=False)))
            == decision
        )
    assert straight.state_dict() == stopped.state_dict()


@given(history=histories(), batch=KINDS)
def test_the_same_report_again_gives_the_same_batch(history, batch) -> None:
    ours = controller(batch=batch)
    answers = [ours.decide(item) for item in history]
    ours.override([Override(id="o1", level="low")], epoch=len(history), step=999)
    assert ours.decision.batch_level == answers[-1].batch_level
    assert ours.decide(replace(history[-1])) == answers[-1]


@st.composite
def calm_histories(draw: st.DrawFn) -> list[Report]:
    """Runs whose layers are often stable, and whose rate moves too little to be a drop."""
    made, rate = [], 0.1
    for epoch in range(draw(st.integers(3, 12))):
        before, rate = rate, rate * draw(st.sampled_from([1.0, 0.6, 0.6, 1.5]))
        norms = st.fixed_dictionaries(dict.fromkeys(NAMES, st.sampled_from([1.0, 1.0, 9.0])))
        made.append(report(epoch, draw(norms), lr=before, next_lr=rate))
    return made


@given(history=calm_histories(), batch=KINDS, given_size=st.sampled_from([None, 32, 64, 200]))
def test_layers_are_critical_only_while_the_batch_outgrows_the_fall_of_the_rate(
    history, batch, given_size
) -> None:
    plain, other = controller(), controller(batch=batch)
    if given_size is not None:
        other.override([by_hand(given_size)], epoch=0, step=0)
    peak = 0.0
    for item in history:
        one, two = plain.decide(item), other.decide(item)
        peak = max(peak, item.lr, item.next_lr)
        if two.global_batch / 64 * item.next_lr > peak * (1.0 + 1e-6):
            assert set(two.regime_by_layer.values()) == {"critical"}
            assert {level.name for level in two.level_by_layer.values()} == {"low"}
        else:
            assert two.regime_by_layer == one.regime_by_layer
            assert two.level_by_layer == one.level_by_layer


def test_compression_is_light_from_the_growth_until_the_rate_has_fallen_as_much() -> None:
    ours = controller(batch=GROWS)
    rates = [(0.1, 0.1), (0.1, 0.1), (0.1, 0.1), (0.1, 0.02), (0.02, 0.02), (0.02, 0.0125)]
    decisions = [
        ours.decide(
            report(epoch, 1.0, lr=lr, next_lr=next_lr, global_batch=64 if epoch < 2 else 512)
        )
        for epoch, (lr, next_lr) in enumerate([*rates, (0.0125, 0.0125)])
    ]
    assert [one.level_by_layer["fc1.weight"].name for one in decisions] == ["low"] * 5 + [
        "high"
    ] * 2
    assert decisions[1].reason.endswith("grown 8 times, the learning rate has fallen 1 times")
    assert decisions[4].reason.endswith("grown 8 times, the learning rate has fallen 5 times")
    assert "count as critical" not in decisions[0].reason + decisions[5].reason


def test_layers_are_critical_while_a_person_grows_the_batch() -> None:
    ours = controller(batch=GROWS)
    ours.decide(report(0, 1.0))
    stable = ours.decide(report(1, dict.fromkeys(NAMES, 1.0) | {"head.weight": 9.0}))
    grown = ours.override([by_hand("high")], epoch=2, step=21)
    assert (stable.regime_by_layer["fc1.weight"], stable.global_batch) == ("stable", 64)
    assert set(grown.regime_by_layer.values()) == {"critical"}
    assert {level.name for level in grown.level_by_layer.values()} == {"low"}
    assert "all layers count as critical: the global batch has grown 8 times" in grown.reason
    assert ours.override([], epoch=2, step=22).regime_by_layer == stable.regime_by_layer


def test_norms_of_layers_are_added_in_squares() -> None:
    ours = controller(batch=GROWS)
    ours.decide(report(0, 4.0))
    decision = ours.decide(report(1, {"fc1.weight": 0.0, "fc2.weight": 0.0, "head.weight": 5.0}))
    assert decision.batch_level == "high"  # 6.9 became 5, while the plain sum fell from 12 to 5


def test_a_batch_that_has_grown_stays_large_through_a_crash() -> None:
    ours, other = controller(batch=GROWS), controller(batch=GROWS)
    assert levels(ours, [report(0, 1.0), report(1, 1.0)]) == ["low", "high"]
    other.load_state_dict(json.loads(json.dumps(ours.state_dict())))
    assert levels(other, [report(2, 9.0), report(3, 99.0)]) == ["high", "high"]


def by_hand(level: object, **fields: object) -> Override:
    return Override(id="o1", target="batch", level=level, **fields)


def in_force(ours: Controller) -> tuple[object, ...]:
    made = ours.decision
    return made.batch_level, made.global_batch, made.batch_override, made.policy_batch_level


@pytest.mark.parametrize(
    ("level", "batch_level", "size"),
    [("low", "low", 64), ("high", "high", 512), (200, None, 200), (512, "high", 512)],
)
def test_a_person_gives_the_batch_a_level_or_a_size(level, batch_level, size) -> None:
    ours = controller(batch=GROWS)
    decision = ours.override([by_hand(level, until=9)], epoch=2, step=21)
    assert in_force(ours) == (batch_level, size, "o1", "low")
    assert decision.reason.startswith(f"override o1 holds the global batch at {size} until epoch 9")
    assert (decision.override_ids, decision.override_by_layer) == (("o1",), {})


def test_the_policy_has_the_batch_again_where_an_override_ends() -> None:
    ours = controller(batch=GROWS)
    ours.override([by_hand("high", until=2)], epoch=0, step=0)
    ours.decide(report(0, global_batch=512))
    assert in_force(ours) == ("high", 512, "o1", "low")
    ours.decide(report(1, global_batch=512))
    assert in_force(ours) == ("low", 64, None, None)


def test_a_batch_that_only_grows_may_be_made_small_by_hand() -> None:
    ours = controller(batch=GROWS)
    levels(ours, [report(0, 1.0), report(1, 1.0)])
    ours.override([by_hand("low")], epoch=2, step=20)
    assert in_force(ours) == ("low", 64, "o1", "high")


def test_of_two_overrides_of_the_batch_the_larger_number_holds() -> None:
    ours = controller(batch=GROWS)
    layers = Override(id="o2", level="high", number=9)
    ours.override(
        [by_hand(100, number=3), layers, replace(by_hand(200, number=2), id="o3")], epoch=0, step=0
    )
    assert in_force(ours) == (None, 100, "o1", "low")
    assert ours.decision.override_ids == ("o1", "o2")


@pytest.mark.parametrize("level", ["middle", 0, -64, True, 64.0, {"rank": 2}])
def test_a_batch_that_is_no_level_and_no_size_is_refused_with_what_is_known(level) -> None:
    with pytest.raises(
        OverrideError, match=r"known are low \(64 samples\), high \(512\), or a number of samples"
    ):
        controller(batch=GROWS).check_override(by_hand(level))


def test_a_batch_of_some_layers_is_refused() -> None:
    with pytest.raises(OverrideError, match="applies to the whole model; leave out the layers"):
        controller(batch=GROWS).check_override(by_hand("low", layers=("fc*",)))


def test_without_a_batch_in_the_settings_its_override_is_refused() -> None:
    with pytest.raises(
        OverrideError, match="this job has no batch levels, so its batch stays as it is"
    ):
        controller().check_override(by_hand(128))


@given(history=histories(), cut=st.integers(0, 7))
def test_a_smaller_batch_by_hand_survives_saving_and_leaves_the_layers_alone(history, cut) -> None:
    plain, ours = controller(batch=FREE), controller(batch=FREE)
    ours.override([by_hand(32)], epoch=0, step=0)
    for position, item in enumerate(history):
        if position == cut:
            saved = json.loads(json.dumps(ours.state_dict(), allow_nan=False))
            ours = controller(batch=FREE)
            ours.load_state_dict(saved)
        one, two = plain.decide(item), ours.decide(item)
        assert one.level_by_layer == two.level_by_layer
        assert in_force(ours) == (None, 32, "o1", one.batch_level)
