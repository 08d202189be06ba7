"""The controller: detector, policy and overrides as one thing that can be asked, saved and asked
again.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.errors import ReportError, StateError
from accordion.base.messages import LayerInfo, Override, Report
from accordion.config import BatchConfig, Config
from accordion.decide.controller import Controller
from tests.unit.accordion.reports import LAYERS, NAMES, controller, histories, report

OVERRIDE = Override(id="o1", level="low", layers=("fc*",), apply_at="next_epoch", until=4)


"""State of a release in which policies had no state and the batch no level."""


def saved_and_loaded(old: Controller) -> Controller:
    """Another controller that went through JSON as strict as a database's, which sorts keys."""
    new = controller()
    new.load_state_dict(json.loads(json.dumps(old.state_dict(), allow_nan=False, sort_keys=True)))
    return new


def levels(decision) -> list[str]:
    return [decision.level_by_layer[name].name for name in NAMES]


def test_a_run_starts_critical_and_light() -> None:
    start = controller().decision
    assert (start.epoch, start.step, start.cause) == (0, 0, "start")
    assert set(start.regime_by_layer.values()) == {"critical"}
    assert levels(start) == ["low", "low", "low"]


def test_stable_layers_are_compressed_strongly_from_the_next_epoch_on() -> None:
    ours = controller()
    ours.decide(report(0, 1.0))
    decision = ours.decide(report(1, {"fc1.weight": 1.0, "fc2.weight": 3.0, "head.weight": 1.0}))
    assert (decision.epoch, decision.step, decision.cause) == (2, 20, "window")
    assert levels(decision) == ["high", "low", "high"]
    assert decision.reason == "1 of 3 layers critical: fc2.weight changed by 2 (threshold 0.5)"


def test_a_window_that_closes_inside_an_epoch_decides_for_that_epoch() -> None:
    decision = controller().decide(report(3, 1.0, epoch_end=False, step=35))
    assert (decision.epoch, decision.step) == (3, 35)


def test_an_epoch_may_end_at_the_step_at_which_a_window_closed() -> None:
    ours = controller()
    ours.decide(report(0, 1.0, epoch_end=False))
    assert ours.decide(report(0, None)).cause == "hold"


def test_decisions_from_reports_are_counted_and_questions_asked_twice_are_not() -> None:
    ours = controller()
    ours.decide(report(0, 1.0))
    ours.decide(report(0, 1.0))
    ours.override([OVERRIDE], epoch=1, step=12)
    assert ours.number == 1


def test_levels_by_rate_follow_it_in_an_open_window_and_survive_a_restart() -> None:
    config = Config(policy="by_rate", policy_options={"fall": 10.0})
    ours, restarted = Controller(config, LAYERS), Controller(config, LAYERS)
    assert levels(ours.decide(report(0, next_lr=0.05))) == ["low"] * 3
    assert levels(ours.decide(report(1, lr=0.05, next_lr=0.01))) == ["high"] * 3
    restarted.load_state_dict(ours.state_dict())
    assert levels(restarted.override([], epoch=2, step=20)) == ["high"] * 3
    assert levels(restarted.decide(report(2, lr=0.01, next_lr=0.2))) == ["low"] * 3


@given(history=histories(), cut=st.integers(0, 7))
def test_saved_loaded_and_continued_equals_never_stopped(history: list[Report], cut: int) -> None:
    straight, stopped = controller(), controller()
    for position, item in enumerate(history):
        if position == cut:
            stopped = saved_and_loaded(stopped)
        if position == 2:
            assert straight.override([OVERRIDE], epoch=2, step=25) == stopped.override(
                [OVERRIDE], epoch=2, step=25
            )
        assert straight.decide(item) == stopped.decide(item)
    assert straight.policy_levels == stopped.policy_levels
    assert straight.state_dict() == stopped.state_dict()


@given(history=histories())
def test_the_same_report_again_gives_the_same_answer_before_and_after_saving(
    history: list[Report],
) -> None:
    ours = controller()
    answers = [ours.decide(item) for item in history]
    ours.override([OVERRIDE], epoch=len(history), step=999)
    same = replace(history[-1])
    assert ours.decide(same) == answers[-1]
    assert saved_and_loaded(ours).decide(same) == answers[-1]
    assert ours.decision.cause == "override"


@given(history=histories())
def test_a_report_that_went_through_json_is_the_same_report(history: list[Report]) -> None:
    ours = controller()
    for item in history:
        norms = json.loads(json.dumps(item.statistic_by_layer, sort_keys=True))
        assert ours.decide(item) is ours.decide(
            replace(item, lr=json.loads(json.dumps(item.lr)), statistic_by_layer=norms)
        )


def test_an_older_report_is_refused_and_changes_nothing() -> None:
    ours = controller()
    ours.decide(report(0, 1.0))
    decision = ours.decide(report(1, 1.0))
    with pytest.raises(ReportError, match="epoch 0, step 10 does not come after"):
        ours.decide(report(0, 1.0))
    assert ours.decision is decision


def test_another_report_of_the_same_step_is_refused() -> None:
    ours = controller()
    ours.decide(report(0, 1.0))
    with pytest.raises(ReportError, match="only go forward"):
        ours.decide(report(0, 2.0))


def test_a_report_that_does_not_fit_changes_nothing() -> None:
    ours = controller()
    before = ours.state_dict()
    with pytest.raises(ReportError, match="missing"):
        ours.decide(report(0, {"fc1.weight": 1.0}))
    assert ours.state_dict() == before


def test_a_state_of_another_model_is_refused_with_the_names_and_changes_nothing() -> None:
    other = Controller(Config(), [LayerInfo(name="other.weight", shape=(2, 2))])
    ours = controller()
    before = ours.state_dict()
    with pytest.raises(StateError, match=r"unexpected \['other.weight'\]"):
        ours.load_state_dict(other.state_dict())
    assert ours.state_dict() == before


@pytest.mark.parametrize(
    "broken", [{}, {"number": "x"}, {"detector": {"regimes": 1}}, {"overrides": [{}]}]
)
def test_a_state_that_cannot_be_read_is_refused(broken) -> None:
    ours = controller()
    state = ours.state_dict() | broken if broken else {}
    with pytest.raises(StateError, match="state_dict"):
        ours.load_state_dict(state)


def test_a_saved_override_that_this_job_cannot_apply_is_refused() -> None:
    other = controller(method="powersgd")
    other.override([Override(id="o1", level={"rank": 2})], epoch=0, step=0)
    with pytest.raises(StateError, match="does not fit this job: override o1"):
        controller(method="topk").load_state_dict(other.state_dict())


def test_a_state_of_a_batch_that_cannot_be_read_is_refused_and_changes_nothing() -> None:
    ours = controller(batch=BatchConfig(low=64, high=512))
    before = ours.state_dict()
    with pytest.raises(StateError, match="state_dict"):
        ours.load_state_dict(before | {"batch": {"level": "high"}})
    assert ours.state_dict() == before


def test_measured_noise_is_part_of_the_question() -> None:
    ours = controller()
    ours.decide(report(0, 1.0, rms_by_layer=dict.fromkeys(NAMES, 2)))
    assert ours.decide(report(0, 1.0, rms_by_layer=dict.fromkeys(NAMES, 2.0))) is ours.decision
    with pytest.raises(ReportError, match="only go forward"):
        ours.decide(report(0, 1.0, rms_by_layer=dict.fromkeys(NAMES, 3.0)))
