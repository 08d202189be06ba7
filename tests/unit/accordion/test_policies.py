"""Policies: from regimes and epoch to the rung of each layer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.errors import ConfigError
from accordion.base.messages import Level
from accordion.base.options import options_schema
from accordion.policies import POLICIES, PolicyInput, check_policy

REGIMES = st.dictionaries(st.text(min_size=1), st.sampled_from(["critical", "stable"]))
OPTIONS = {
    "two_level": {},
    "fixed": {"level": "low"},
    "scheduled": {"table": {"0": "low", "5": "high"}},
    "by_rate": {"fall": 2.0},
    "cost_aware": {"saving": 0.05, "wait_share": 0.05},
    "legacy": {"early_size": 1000, "late_size": 100, "late_from": 5},
    "entropy": {"drop": 0.7},
    "gain": {"least": 0.5, "retry": 2},
    "adaqs": {"drop": 0.5},
}
LADDER = tuple(Level(name=name, method="none") for name in ("low", "high"))


def picked(
    name: str,
    regimes: dict[str, str],
    *,
    epoch: int = 0,
    options: dict[str, object] | None = None,
    sizes: dict[str, int] | None = None,
):
    """What a policy picks that has observed nothing."""
    ladders = dict.fromkeys(regimes, LADDER)
    chosen = PolicyInput(
        epoch=epoch,
        regime_by_layer=regimes,
        ladder_by_layer=ladders,
        size_by_layer=sizes or dict.fromkeys(regimes, 1),
        options=check_policy(name, options or {}),
    )
    return POLICIES[name].decide_levels(chosen)


@pytest.mark.parametrize("name", POLICIES)
@given(regimes=REGIMES, epoch=st.integers(0, 1000))
def test_every_policy_gives_every_layer_a_rung(name, regimes, epoch) -> None:
    chosen = picked(name, regimes, epoch=epoch, options=OPTIONS[name])
    assert chosen.keys() == regimes.keys()
    assert set(chosen.values()) <= {"low", "high"}


@pytest.mark.parametrize("name", POLICIES)
@given(regimes=REGIMES, epoch=st.integers(0, 1000))
def test_what_a_policy_says_of_regimes_alone_is_what_it_picks_at_the_start(
    name, regimes, epoch
) -> None:
    chosen = POLICIES[name].initial_levels(
        regimes, epoch, check_policy(name, OPTIONS[name]), size_by_layer=dict.fromkeys(regimes, 1)
    )
    assert chosen == picked(name, regimes, epoch=epoch, options=OPTIONS[name])


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_refuses_an_unknown_option_by_name(name) -> None:
    with pytest.raises(ConfigError, match="no option 'bogus'"):
        check_policy(name, {**OPTIONS[name], "bogus": 1})


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_describes_exactly_the_options_it_takes(name) -> None:
    schema = options_schema(POLICIES[name].options)
    assert set(schema["properties"]) == set(OPTIONS[name])
    assert schema["additionalProperties"] is False


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="unknown policy 'best'; known are two_level, fixed, scheduled"
    ):
        check_policy("best", {})


@given(regimes=REGIMES)
def test_two_level_is_light_exactly_where_the_regime_is_critical(regimes) -> None:
    chosen = picked("two_level", regimes)
    assert all(
        (chosen[layer] == "low") == (regime == "critical") for layer, regime in regimes.items()
    )


def test_fixed_is_strong_unless_told_otherwise() -> None:
    assert picked("fixed", {"a": "critical"}) == {"a": "high"}


def test_a_schedule_holds_each_level_until_the_next_row() -> None:
    options = {"table": {"0": "low", "10": "high", "2": "high", "4": "low"}}
    epochs = (0, 1, 2, 3, 4, 9, 10, 99)
    levels = [
        picked("scheduled", {"a": "stable"}, epoch=epoch, options=options)["a"] for epoch in epochs
    ]
    assert levels == ["low", "low", "high", "high", "low", "low", "high", "high"]


@pytest.mark.parametrize(
    ("epoch", "levels"), [(0, "low low high"), (4, "low low high"), (5, "low high high")]
)
def test_legacy_is_strong_for_large_layers_and_later_for_smaller_ones(epoch, levels) -> None:
    sizes = {"small": 99, "middle": 100, "large": 1000}
    chosen = picked(
        "legacy",
        dict.fromkeys(sizes, "critical"),
        epoch=epoch,
        options=OPTIONS["legacy"],
        sizes=sizes,
    )
    assert " ".join(chosen[layer] for layer in sizes) == levels


def levels_of_entropy(windows) -> str:
    """Return the levels of one layer of 10 values after each window of (rms, cause)."""
    state, levels = {}, []
    for rms, cause in windows:
        seen = PolicyInput(
            epoch=0,
            regime_by_layer={"a": "stable"},
            ladder_by_layer={"a": tuple(Level(name=n, method="none") for n in "123")},
            size_by_layer={"a": 10},
            options={"drop": 0.7},
            state=state,
            cause=cause,
            statistic_by_layer={"a": rms},
            rms_by_layer={"a": rms},
        )
        state = POLICIES["entropy"].observe_report(seen)
        levels.append(POLICIES["entropy"].decide_levels(replace(seen, state=state))["a"])
    return "".join(levels)


@pytest.mark.parametrize(
    ("windows", "levels"),
    [
        ([(8.0, "window"), (4.1, "window"), (3.9, "window"), (1.9, "window")], "1123"),
        ([(8.0, "window"), (1.0, "window"), (3.9, "window"), (16.0, "window")], "1321"),
        ([(8.0, "window"), (3.9, "window"), (80.0, "skip"), (39.0, "window")], "1223"),
        ([(0.0, "window"), (8.0, "window"), (math.inf, "window"), (3.9, "window")], "1112"),
    ],
    ids=["falls", "rises again", "batch changes", "not measurable"],
)
def test_entropy_is_one_level_stronger_for_each_drop_of_entropy(windows, levels) -> None:
    assert levels_of_entropy(windows) == levels


def levels_of_gain(gains) -> str:
    """Return the levels of one layer after each window with this gain; None: not measured."""
    state, levels = {}, []
    for gain in gains:
        seen = PolicyInput(
            epoch=0,
            regime_by_layer={"a": "stable"},
            ladder_by_layer={"a": tuple(Level(name=n, method="none") for n in "123")},
            size_by_layer={"a": 10},
            options={"least": 0.5, "retry": 2},
            state=state,
            cause="window",
            statistic_by_layer={"a": 1.0},
            sent_share_by_layer={} if gain is None else {"a": gain},
        )
        state = POLICIES["gain"].observe_report(seen)
        levels.append(POLICIES["gain"].decide_levels(replace(seen, state=state))["a"])
    return "".join(level[0] for level in levels)


@pytest.mark.parametrize(
    ("gains", "levels"),
    [
        ([0.9, 0.8, 0.7, 0.6], "2333"),
        ([0.9, 0.4, 0.9, 0.9, 0.9, 0.4], "211232"),
        ([0.4, None, None, None, 0.5], "nn112"),
        ([0.9, 0.8, 0.4, 0.4, 0.4], "2321n"),
    ],
    ids=["all keep enough", "stronger again after retry", "none and back", "falls to none"],
)
def test_gain_is_as_strong_as_the_share_of_energy_sent_allows(gains, levels) -> None:
    assert levels_of_gain(gains) == levels


def test_gain_changes_nothing_while_a_window_is_open_or_nothing_was_measured() -> None:
    seen = PolicyInput(
        epoch=0,
        regime_by_layer={"a": "stable"},
        ladder_by_layer={"a": LADDER},
        size_by_layer={"a": 10},
        options=OPTIONS["gain"],
        state={"a": {"level": 1, "wait": 1}},
        sent_share_by_layer={"a": 0.1},
    )
    assert POLICIES["gain"].observe_report(seen) == seen.state
    closed = replace(seen, statistic_by_layer={"a": 1.0}, sent_share_by_layer={})
    assert POLICIES["gain"].observe_report(closed) == seen.state
    powersgd = tuple(replace(level, method="powersgd") for level in LADDER)
    unmeasured = replace(closed, ladder_by_layer={"a": powersgd})
    assert POLICIES["gain"].explain_levels(unmeasured) == ""
    assert "10% to 10%" in POLICIES["gain"].explain_levels(seen)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "policy scheduled needs option 'table'"),
        ({"table": "low"}, "table is 'low'; it must be a mapping"),
        ({"table": {}}, "starts at epoch None"),
        ({"table": {"3": "low"}}, "starts at epoch 3"),
        ({"table": {"0": "low", "-1": "high"}}, "'-1' is no epoch"),
        ({"table": {"0": "middle"}}, "'middle' at epoch 0; known are low, high"),
    ],
)
def test_a_table_that_cannot_be_followed_is_refused(options, sentence) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_policy("scheduled", options)


def test_a_fixed_level_that_the_ladder_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="'middle'; known are low, high"):
        check_policy("fixed", {"level": "middle"})


def told(name: str, *, method: str = "powersgd", **fields: Any) -> PolicyInput:
    """What a policy is told about layers of 10, 500 and 5000 values after a window."""
    sizes = {"a": 10, "b": 500, "c": 5000}
    ladder = tuple(Level(name=level, method=method) for level in ("low", "high"))
    return replace(
        PolicyInput(
            epoch=0,
            regime_by_layer=dict.fromkeys(sizes, "stable"),
            ladder_by_layer=dict.fromkeys(sizes, ladder),
            size_by_layer=sizes,
            options=OPTIONS[name],
            cause="window",
            statistic_by_layer=dict.fromkeys(sizes, 1.0),
        ),
        **fields,
    )


@pytest.mark.parametrize(
    ("epoch", "reason"),
    [
        (4, "1 layer is at high and 2 at low, because before epoch 5 those with 1000 values or"),
        (5, "2 layers are at high and 1 at low, because from epoch 5 on those with 100 values or"),
    ],
)
def test_the_reason_of_legacy_gives_levels_stage_and_size(epoch, reason) -> None:
    said = POLICIES["legacy"].explain_levels(told("legacy", epoch=epoch))
    assert said.startswith(reason)


@pytest.mark.parametrize(
    ("fall", "levels"),
    [(1.0, "light"), (0.5, "light"), (2.99, "light"), (3.0, "mid"), (0.1 / 0.01, "strong")],
)
def test_by_rate_is_one_level_stronger_for_each_factor_of_the_fall(fall, levels) -> None:
    ladder = tuple(Level(name=name, method="none") for name in ("light", "mid", "strong"))
    chosen = told("by_rate", rate_fall=fall, options={"fall": 3.0})
    chosen = replace(chosen, ladder_by_layer=dict.fromkeys(chosen.size_by_layer, ladder))
    assert set(POLICIES["by_rate"].decide_levels(chosen).values()) == {levels}


@pytest.mark.parametrize("exponent", range(1, 9))
def test_a_fall_by_the_factor_counts_although_it_is_rounded(exponent) -> None:
    ladder = tuple(Level(name=str(number), method="none") for number in range(10))
    chosen = told("by_rate", rate_fall=0.2 / (0.2 * 0.1**exponent), options={"fall": 10.0})
    chosen = replace(chosen, ladder_by_layer=dict.fromkeys(chosen.size_by_layer, ladder))
    assert set(POLICIES["by_rate"].decide_levels(chosen).values()) == {str(exponent)}


def test_the_reason_of_by_rate_gives_levels_and_the_fall() -> None:
    assert POLICIES["by_rate"].explain_levels(told("by_rate", rate_fall=10.0)) == (
        "3 layers are at high, because the learning rate's peak is 10 times the rate now, and each"
        " level takes a factor of 2 (fall)"
    )


def test_the_reason_of_entropy_gives_levels_and_the_fall() -> None:
    assert POLICIES["entropy"].explain_levels(told("entropy")) == (
        "3 layers are at low, because no entropy is measured yet"
    )
    falls = {"a": 0.0, "b": 0.5, "c": 0.9}
    state = {layer: {"reference": 1.0, "entropy": 1.0 - fall} for layer, fall in falls.items()}
    assert POLICIES["entropy"].explain_levels(told("entropy", state=state)) == (
        "1 layer is at high and 2 at low, because their entropy fell by 0.00 to 0.90 nats since the"
        " first window, and each level takes 0.7 (drop)"
    )


@pytest.mark.parametrize("method", ["none", "qsgd"])
def test_gain_says_that_a_method_without_residuals_stays_at_its_lightest_level(method) -> None:
    seen = told("gain", method=method)
    seen = replace(seen, state=POLICIES["gain"].observe_report(seen))
    assert set(POLICIES["gain"].decide_levels(seen).values()) == {"low"}
    said = POLICIES["gain"].explain_levels(seen)
    assert said.startswith(f"layers stay at their lightest level, because {method} keeps no resid")
