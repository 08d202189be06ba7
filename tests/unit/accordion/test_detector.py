"""The detector's rule, and the ways in which the published one goes wrong."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.errors import ReportError
from accordion.base.messages import Report
from accordion.config import DetectorConfig
from accordion.decide.detector import DetectorState, init_detector, update_detector
from tests.unit.accordion.reports import NAMES, histories, regimes_of, replay, report

POSITIVE = st.floats(min_value=1e-30, max_value=1e30)


def test_every_layer_is_critical_before_the_first_report() -> None:
    assert set(init_detector(NAMES).regime_by_layer.values()) == {"critical"}


def test_the_first_closed_window_has_nothing_to_be_compared_with() -> None:
    [(state, result)] = replay([report(0, 1.0)])
    assert state.statistic_by_layer == dict.fromkeys(NAMES, 1.0)
    assert result.cause == "window"
    assert set(result.change_by_layer.values()) == {None}
    assert set(state.regime_by_layer.values()) == {"critical"}


@given(old=POSITIVE, new=POSITIVE, threshold=st.floats(0.01, 10.0))
def test_a_layer_is_critical_exactly_when_its_relative_change_reaches_the_threshold(
    old, new, threshold
) -> None:
    answers = replay([report(0, old), report(1, new)], DetectorConfig(threshold=threshold))
    state, result = answers[-1]
    change = abs(old - new) / old
    assert result.change_by_layer[NAMES[0]] == pytest.approx(change) or math.isinf(change)
    assert (state.regime_by_layer[NAMES[0]] == "critical") == (change >= threshold)


def test_a_change_of_exactly_the_threshold_is_critical() -> None:
    assert regimes_of([2.0, 1.0], DetectorConfig(threshold=0.5)) == ["critical", "critical"]


def test_layers_are_judged_one_by_one() -> None:
    answers = replay(
        [report(0, 1.0), report(1, {"fc1.weight": 1.1, "fc2.weight": 3.0, "head.weight": 1.0})]
    )
    assert list(answers[-1][0].regime_by_layer.values()) == ["stable", "critical", "stable"]


def test_a_norm_that_leaves_zero_is_critical_and_one_that_stays_zero_is_stable() -> None:
    answers = replay(
        [report(0, 0.0), report(1, {"fc1.weight": 1e-9, "fc2.weight": 0.0, "head.weight": 0.0})]
    )
    state, result = answers[-1]
    assert list(state.regime_by_layer.values()) == ["critical", "stable", "stable"]
    assert list(result.change_by_layer.values()) == [None, 0.0, 0.0]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_non_finite_norm_keeps_its_layer_critical_until_two_finite_windows_follow(
    broken,
) -> None:
    windows = [report(0, 1.0), report(1, dict.fromkeys(NAMES, 1.0) | {"fc1.weight": broken})]
    regimes = [
        dict(state.regime_by_layer)
        for state, _ in replay([*windows, report(2, 1.0), report(3, 1.0)])
    ]
    assert [after["fc1.weight"] for after in regimes[1:]] == ["critical", "critical", "stable"]
    assert [after["fc2.weight"] for after in regimes[1:]] == ["stable", "stable", "stable"]


def test_an_open_window_changes_no_regime() -> None:
    first = [report(0, 1.0), report(1, 1.0)]
    before, after = replay([*first, report(2, None, window_steps=7)])[1:]
    assert after[0].regime_by_layer == before[0].regime_by_layer
    assert after[1].cause == "hold"
    assert after[1].reason == "window still open after 7 steps: regimes stay"
    rounds = replay([*first, report(2, None, window_steps=7, local_steps=4)])[-1]
    assert rounds[1].reason == "window still open after 7 rounds of local steps: regimes stay"
    begun = replay([*first, report(2, None, window_steps=0)])[-1]
    assert begun[1].reason == "a new window has begun: regimes stay"


@pytest.mark.parametrize("sizes", [{"global_batch": 512}, {"world_size": 4}, {"local_steps": 8}])
def test_the_window_after_a_change_of_what_it_depends_on_is_not_compared(sizes) -> None:
    answers = replay(
        [report(0, 1.0), report(1, 1.0), report(2, 9.0, **sizes), report(3, 9.0, **sizes)]
    )
    assert [result.cause for _, result in answers] == ["window", "window", "skip", "window"]
    assert {regime for state, _ in answers[1:] for regime in state.regime_by_layer.values()} == {
        "stable"
    }


def test_longer_rounds_of_local_steps_are_compared_and_gradients_after_them_are_not() -> None:
    lengths = (8, 32, 32, 1, 1)
    made = [report(epoch, 1.0, local_steps=length) for epoch, length in enumerate(lengths)]
    causes = [result.cause for _, result in replay(made)]
    assert causes == ["window", "window", "window", "skip", "window"]


def test_a_change_in_the_middle_of_a_window_skips_that_window_only() -> None:
    made = [
        report(0, 1.0),
        report(1, None, world_size=4),
        report(2, 9.0, world_size=4),
        report(3, 9.0, world_size=4),
    ]
    assert [result.cause for _, result in replay(made)] == ["window", "hold", "skip", "window"]


def test_a_batch_that_grows_eightfold_is_no_false_alarm_even_for_the_published_sum() -> None:
    sums = [8.0, 8.0, 8.0, 1.0, 1.0, 1.0]  # norm of the sum over an epoch: an eighth of the steps
    assert regimes_of(sums, global_batch=lambda e: 64 if e < 3 else 512)[1:] == ["stable"] * 5
    assert "critical" in regimes_of(sums)[1:]  # the change is there to be seen


def test_losing_half_of_the_workers_is_no_false_alarm_even_for_the_published_sum() -> None:
    sums = [1.0, 1.0, 2.0, 2.0, 2.0]
    assert regimes_of(sums, world_size=lambda e: 4 if e < 2 else 2)[1:] == ["stable"] * 4
    assert "critical" in regimes_of(sums)[1:]


def test_a_rate_divided_by_ten_is_critical_for_one_whole_window() -> None:
    windows = [
        1.0 if epoch % 3 == 2 else None for epoch in range(12)
    ]  # closed after epochs 2, 5, 8, 11
    rates = [0.1] * 7 + [0.01] * 6
    regimes = regimes_of(windows, lr=lambda e: rates[e], next_lr=lambda e: rates[e + 1])
    assert regimes == ["critical"] * 5 + ["stable"] + ["critical"] * 5 + ["stable"]


SHAPES = {
    "cosine": lambda part: (1 + math.cos(math.pi * part)) / 2,
    "linear": lambda part: 1 - part,
    "exponential": lambda part: 0.01**part,
}


@pytest.mark.parametrize("window", [1, 10])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_gradual_decay_of_the_rate_is_no_drop_down_to_zero(shape, window) -> None:
    epochs = 10 * window
    rates = [0.1 * SHAPES[shape](epoch / epochs) for epoch in range(epochs + 1)]
    windows = [1.0 if epoch % window == window - 1 else None for epoch in range(epochs)]
    regimes = regimes_of(windows, lr=lambda e: rates[e], next_lr=lambda e: rates[e + 1])
    first = 2 * window - 1
    assert regimes == ["critical"] * first + ["stable"] * (epochs - first)


def test_a_gradual_decay_whose_reports_come_at_uneven_times_is_no_drop() -> None:
    rates = [1.0, 0.9, 0.9, 0.7, 0.65, 0.4, 0.4, 0.2, 0.15, 0.15, 0.0]
    regimes = regimes_of([1.0] * 10, lr=lambda e: rates[e], next_lr=lambda e: rates[e + 1])
    assert regimes == ["critical"] + ["stable"] * 9


@pytest.mark.parametrize(("factor", "gradual"), [(0.1, 1.0), (0.5, 1.0), (0.1, 0.95)])
def test_each_step_of_the_rate_is_a_drop_however_low_it_is(factor, gradual) -> None:
    rates = [0.1 * factor ** (epoch // 3) * gradual**epoch for epoch in range(13)]
    regimes = regimes_of([1.0] * 12, lr=lambda e: rates[e], next_lr=lambda e: rates[e + 1])
    assert regimes == ["critical", "stable", "critical", *["stable", "stable", "critical"] * 3]


def test_a_rate_that_falls_to_a_tenth_in_every_window_is_a_drop_each_time() -> None:
    rates = [0.1**epoch for epoch in range(6)]
    regimes = regimes_of([1.0] * 5, lr=lambda e: rates[e], next_lr=lambda e: rates[e + 1])
    assert regimes == ["critical"] * 5


def test_a_decay_goes_on_after_a_resume_without_a_drop() -> None:
    made = [report(e, 1.0, lr=0.1 - 0.01 * e, next_lr=0.09 - 0.01 * e) for e in range(10)]
    state, _ = replay(made[:6])[-1]
    saved = DetectorState(**json.loads(json.dumps(asdict(state))))
    assert replay(made[6:], state=saved) == replay(made)[6:]
    assert [result.cause for _, result in replay(made[6:], state=saved)] == ["window"] * 4


def test_a_rate_that_rises_or_stays_at_zero_is_no_drop() -> None:
    assert (
        regimes_of([1.0] * 3, lr=lambda e: 0.1 * e, next_lr=lambda e: 0.1 * (e + 1))[1:]
        == ["stable"] * 2
    )
    assert regimes_of([1.0] * 3, lr=lambda _: 0.0)[1:] == ["stable"] * 2


def test_the_reason_names_the_layer_that_changed_most() -> None:
    second = {"fc1.weight": 1.73, "fc2.weight": 1.6, "head.weight": 1.0}
    result = replay([report(0, 1.0), report(1, second)])[-1][1]
    assert result.reason == "2 of 3 layers critical: fc1.weight changed by 0.73 (threshold 0.5)"


def test_a_report_of_another_model_is_refused_with_the_names() -> None:
    with pytest.raises(ReportError) as refused:
        replay([report(0, {"fc1.weight": 1.0, "fc2.weight": 1.0, "tail.weight": 1.0})])
    assert "missing ['head.weight'], unexpected ['tail.weight']" in str(refused.value)


@pytest.mark.parametrize(
    "rates", [{"lr": math.nan}, {"next_lr": -0.1}, {"lr": math.inf, "next_lr": 0.1}]
)
def test_a_rate_that_is_none_is_refused(rates) -> None:
    with pytest.raises(ReportError, match="learning rate"):
        replay([report(0, 1.0, **rates)])


@given(history=histories())
def test_an_update_changes_nothing_in_place(history: list[Report]) -> None:
    state = init_detector(NAMES)
    for item in history:
        copy = replace(state, regime_by_layer=dict(state.regime_by_layer))
        update_detector(state, item, DetectorConfig())
        assert state == copy
        state, _ = update_detector(state, item, DetectorConfig())


@given(history=histories(), factor=st.sampled_from([0.125, 2.0, 1024.0]))
def test_regimes_do_not_depend_on_the_unit_of_the_statistic(
    history: list[Report], factor: float
) -> None:
    def scaled(item: Report) -> Report:
        norms = item.statistic_by_layer
        return replace(
            item, statistic_by_layer=norms and {name: factor * norm for name, norm in norms.items()}
        )

    moderate = [
        item
        for item in history
        if all(_survives(v, factor) for v in (item.statistic_by_layer or {}).values())
    ]
    plain, other = replay(moderate), replay([scaled(item) for item in moderate])
    assert [state.regime_by_layer for state, _ in plain] == [
        state.regime_by_layer for state, _ in other
    ]


def _survives(norm: float, factor: float) -> bool:
    """Whether scaling by a power of two is exact."""
    return not math.isfinite(norm) or norm * factor / factor == norm


def test_a_report_of_another_statistic_than_the_one_asked_for_is_refused() -> None:
    with pytest.raises(ReportError, match="report with statistic_kind='paper'"):
        replay([report(0, 1.0)], DetectorConfig(statistic="paper"))
    answers = replay([report(0, 1.0, statistic_kind="paper")], DetectorConfig(statistic="paper"))
    assert answers[0][1].cause == "window"


def test_the_published_rule_counts_a_layer_that_stays_at_zero_as_critical() -> None:
    made = [report(epoch, 0.0, statistic_kind="paper") for epoch in range(2)]
    assert set(replay(made, DetectorConfig(statistic="paper"))[-1][0].regime_by_layer.values()) == {
        "critical"
    }
    assert regimes_of([0.0, 0.0]) == ["critical", "stable"]


def test_any_drop_of_the_rate_counts_where_the_limit_is_one_as_published() -> None:
    rates = [0.1, 0.1, 0.099, 0.099, 0.099]
    changes = {"lr": lambda e: rates[e], "next_lr": lambda e: rates[e + 1]}
    assert regimes_of([1.0] * 4, DetectorConfig(lr_drop=1.0), **changes)[1:] == [
        "critical",
        "stable",
        "stable",
    ]
    assert regimes_of([1.0] * 4, **changes)[1:] == ["stable"] * 3
