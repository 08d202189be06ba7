"""The policy adaqs: less compression as a layer's signal-to-noise ratio falls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.messages import Level
from accordion.policies import POLICIES, PolicyInput

RUNGS = ("b2", "b4", "b6", "b8")  # lightest first, as on every ladder
LADDER = tuple(Level(name=name, method="none") for name in RUNGS)
START = PolicyInput(
    epoch=0,
    regime_by_layer={"a": "stable"},
    ladder_by_layer={"a": LADDER},
    size_by_layer={"a": 1},
    options={"drop": 0.5},
)
ADAQS = POLICIES["adaqs"]
RATIOS = st.lists(st.none() | st.floats(1e-3, 1e3), min_size=1, max_size=12)


def window(norm: float | None, rms: float | None = None, **fields: object) -> Mapping[str, object]:
    """What a report at the end of a window tells of the one layer."""
    named = {"statistic_by_layer": norm, "rms_by_layer": rms}
    return {name: None if value is None else {"a": value} for name, value in named.items()} | fields


def with_ratio(ratio: float | None, **fields: object) -> Mapping[str, object]:
    """A window whose signal is `ratio` times its noise, or an open one."""
    return window(ratio, None if ratio is None else math.hypot(ratio, 1.0), **fields)


def rungs_after(windows: Iterable[Mapping[str, object]], start: PolicyInput = START) -> list[str]:
    """The layer's rung after each window."""
    rungs, now = [], start
    for fields in windows:
        now = replace(start, state=ADAQS.observe_report(replace(now, **fields)))
        rungs.append(ADAQS.decide_levels(now)["a"])
    return rungs


def test_a_layer_starts_on_its_strongest_rung() -> None:
    assert ADAQS.decide_levels(START) == {"a": "b8"}


def test_each_halving_of_signal_to_noise_takes_one_rung_off() -> None:
    ratios = [8.0, 4.1, 3.9, 2.0, 1.9, 0.9, 0.4, 0.1]
    assert rungs_after(map(with_ratio, ratios)) == ["b8", "b8", "b6", "b6", "b4", "b2", "b2", "b2"]


def test_the_reference_follows_a_ratio_that_rises() -> None:
    assert rungs_after(map(with_ratio, [1.0, 8.0, 3.9])) == ["b8", "b8", "b6"]


def test_a_gradient_that_shrinks_together_with_its_noise_changes_nothing() -> None:
    shrinking = [window(scale, scale * math.hypot(1.0, 2.0)) for scale in (1.0, 0.1, 0.01)]
    assert rungs_after(shrinking) == ["b8"] * 3


def test_without_measured_noise_the_norm_stands_for_the_ratio() -> None:
    assert rungs_after(map(window, [1.0, 0.6, 0.5, 0.1])) == ["b8", "b8", "b6", "b4"]


def test_noise_that_begins_to_be_measured_is_not_compared_with_norms() -> None:
    assert rungs_after([window(1000.0), with_ratio(1.0), with_ratio(0.4)]) == ["b8", "b8", "b6"]


def test_a_window_after_a_change_of_batch_only_gives_a_new_reference() -> None:
    windows = [with_ratio(8.0), with_ratio(1.0, cause="skip"), with_ratio(0.6), with_ratio(0.4)]
    assert rungs_after(windows) == ["b8", "b8", "b8", "b6"]


@pytest.mark.parametrize(
    "broken",
    [
        (0.0, 1.0),
        (math.nan, 1.0),
        (math.inf, 1.0),
        (1.0, math.nan),
        (1.0, 0.0),
        (1.02, 1.0),
        (1.0, math.inf),
    ],
)
def test_a_window_in_which_signal_or_noise_cannot_be_told_changes_nothing(broken) -> None:
    windows = [with_ratio(8.0), window(*broken), with_ratio(5.0), with_ratio(3.9)]
    assert rungs_after(windows) == ["b8", "b8", "b8", "b6"]


@given(ratios=RATIOS, drop=st.floats(0.01, 0.99))
def test_no_layer_ever_goes_back_to_a_stronger_rung(ratios, drop) -> None:
    rungs = [
        RUNGS.index(rung)
        for rung in rungs_after(map(with_ratio, ratios), replace(START, options={"drop": drop}))
    ]
    assert rungs == sorted(rungs, reverse=True)


@given(ratios=RATIOS, exponent=st.integers(-30, 30))
def test_rungs_do_not_depend_on_the_unit_of_the_gradient(ratios, exponent) -> None:
    scaled = [
        with_ratio(None)
        if r is None
        else window(r * 2.0**exponent, math.hypot(r, 1.0) * 2.0**exponent)
        for r in ratios
    ]
    assert rungs_after(scaled) == rungs_after(map(with_ratio, ratios))


@given(ratio=st.floats(1e-3, 1e3))
def test_an_open_window_leaves_the_state_alone(ratio) -> None:
    state = ADAQS.observe_report(replace(START, **with_ratio(ratio)))
    assert ADAQS.observe_report(replace(START, state=state)) == state
