"""Settings are checked where they are born, and say what they would have taken."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.errors import ConfigError
from accordion.compressors import COMPRESSORS
from accordion.config import BatchConfig, Config, DetectorConfig, Window


@pytest.mark.parametrize("method", COMPRESSORS)
def test_every_method_has_a_light_and_a_strong_level_of_its_own(method) -> None:
    low, high = Config(method=method).ladder()
    assert (low.name, high.name) == ("low", "high")
    assert low.options.keys() == high.options.keys() == COMPRESSORS[method].options.keys()


def test_an_option_that_is_left_out_is_spelled_out_in_the_level() -> None:
    low, high = Config(method="topk", low={"density": 0.5}, high={"values": "fp16"}).ladder()
    rest = {name: option.default for name, option in COMPRESSORS["topk"].options.items()}
    assert low.options == rest | {"density": 0.5}
    assert high.options == rest | {"values": "fp16"}
    assert rest["density"] != 0.5
    assert rest["values"] != "fp16"


@pytest.mark.parametrize(
    ("create", "sentence"),
    [
        (lambda: DetectorConfig(window=10), r"window is 10; give Window\(epochs=10\)"),
        (lambda: Window(epochs=2.5), "window has epochs=2.5"),
        (lambda: Window(steps="9"), "window has epochs=None and steps='9'"),
        (lambda: DetectorConfig(threshold="0.5"), "threshold is '0.5'; it must be a number"),
        (lambda: DetectorConfig(lr_drop=None), "lr_drop is None; it must be a number"),
        (
            lambda: Config(detector=Window(epochs=2)),
            r"detector is Window.*DetectorConfig\(\.\.\.\)",
        ),
        (lambda: Config(batch=(512, 4096)), r"batch is \(512, 4096\); give .*BatchConfig\("),
        (lambda: Config(by_layer={"fc*": "topk"}), r"by_layer is .*'topk'.*LayerPlan\(\.\.\.\)"),
        (lambda: Config(by_layer=["fc"]), r"by_layer is \['fc'\]; give .*LayerPlan\(\.\.\.\)"),
        (lambda: Config(warm_up=500), r"warm_up is 500; give .*WarmUp\(steps=500\)"),
        (lambda: Config(policy_options=3), r"policy_options is 3; give .*\{\}"),
    ],
)
def test_a_setting_of_another_type_is_refused_where_it_is_written(create, sentence) -> None:
    with pytest.raises(ConfigError, match=sentence):
        create()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "zip"}, "unknown compression method 'zip'; known are none, half"),
        ({"low": {"rang": 2}}, "powersgd level 'low' has no option 'rang'; known are .*rank"),
        (
            {"high": {"rank": 0}},
            "powersgd level 'high'.rank is 0; it must be at least 1 and at most 1024",
        ),
        ({"high": {"rank": 1.5}}, "must be of type integer"),
        ({"method": "topk", "low": {"density": math.nan}}, "must be at least 1e-06"),
        ({"buckets_per_exchange": 0}, "buckets_per_exchange is 0; give a whole number, at least 1"),
        ({"buckets_per_exchange": 1.5}, "is 1.5; give a whole number"),
        ({"buckets_per_exchange": "4"}, "is '4'; give a whole number"),
        ({"buckets_per_exchange": None}, "is None; give a whole number, at least 1, or 'all'"),
        ({"buckets_per_exchange": True}, "is True; give a whole number"),
        ({"policy": "best"}, "unknown policy 'best'"),
        ({"policy": "fixed", "policy_options": {"level": "middle"}}, "known are low, high"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_value_and_the_limit(settings, sentence) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Config(**settings)


@pytest.mark.parametrize("given_", [{}, {"epochs": 1, "steps": 1}, {"epochs": 0}, {"steps": -1}])
def test_a_window_is_counted_in_exactly_one_unit(given_) -> None:
    with pytest.raises(ConfigError, match="exactly one"):
        Window(**given_)


@given(threshold=st.floats(max_value=0.0) | st.just(math.nan))
def test_a_threshold_that_everything_or_nothing_reaches_is_refused(threshold) -> None:
    with pytest.raises(ConfigError, match="threshold"):
        DetectorConfig(threshold=threshold)


@pytest.mark.parametrize("lr_drop", [1.01, -0.1, math.nan])
def test_a_drop_outside_of_its_range_is_refused(lr_drop) -> None:
    with pytest.raises(ConfigError, match="lr_drop"):
        DetectorConfig(lr_drop=lr_drop)


@pytest.mark.parametrize(
    ("method", "low", "high"),
    [("powersgd", {"rank": 1}, {"rank": 8}), ("topk", {"density": 0.001}, {"density": 0.01})],
)
def test_a_light_level_that_compresses_harder_than_the_strong_one_is_refused(method, low, high):
    with pytest.raises(ConfigError, match="give both, low with the larger"):
        Config(method=method, low=low, high=high)
    assert Config(method=method, low=high, high=low).ladder()[0].name == "low"


@pytest.mark.parametrize("method", sorted(COMPRESSORS))
def test_an_option_that_is_given_leaves_the_levels_other_options_as_they_are(method) -> None:
    low, high = Config(method=method).ladder()
    for name, value in low.options.items():
        if low.options[name] == high.options[name]:
            assert Config(method=method, low={name: value}, high={name: value}).ladder() == (
                low,
                high,
            )


def test_a_level_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="powersgd level 'low' is 4; give its options by name"):
        Config(low=4)


def test_an_unknown_statistic_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="statistic is 'sum'; known are mean, paper"):
        DetectorConfig(statistic="sum")


@pytest.mark.parametrize("sizes", [(0, 8), (8, 8), (64, 8), (8.0, 64), (True, 64), (8, "64")])
def test_sizes_of_a_batch_that_cannot_grow_are_refused(sizes) -> None:
    with pytest.raises(ConfigError, match="with high above low"):
        BatchConfig(low=sizes[0], high=sizes[1])


def test_the_published_statistic_is_of_epochs_and_refuses_a_window_in_steps() -> None:
    with pytest.raises(ConfigError, match="'paper' compares sums over whole epochs"):
        DetectorConfig(statistic="paper", window=Window(steps=5))
