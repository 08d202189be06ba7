"""Settings of local steps that are refused."""

from __future__ import annotations

import pytest

from accordion.base.errors import ConfigError
from accordion.base.local_steps import LocalSteps
from accordion.config import Config


@pytest.mark.parametrize("method", ["powersgd", "topk", "signsgd", "adacomp", "randomk"])
def test_methods_with_residuals_are_refused(method):
    with pytest.raises(ConfigError, match=f"combined with {method}: .*use qsgd, half or none"):
        Config(method=method, local_steps=LocalSteps(low=2, high=2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"low": 0, "high": 2},
        {"low": 4, "high": 2},
        {"low": 1.5, "high": 2},
        {"low": 1, "high": 2, "start_steps": -1},
        {"low": 1, "high": 2, "start_steps": "soon"},
        {"low": 1, "high": 2, "power": -1.0},
        {"low": 1, "high": 2, "power": float("nan")},
        {"low": 1, "high": 2, "outer": "adam"},
        {"low": 4, "high": 8, "overlap": -1},
        {"low": 4, "high": 8, "overlap": 5},
        {"low": 4, "high": 8, "overlap": True},
    ],
)
def test_a_wrong_number_is_refused_with_the_value(wrong):
    name, value = list(wrong.items())[-1]
    with pytest.raises(ConfigError, match=f"local_steps has .*{name}={value!r}"):
        LocalSteps(**wrong)


@pytest.mark.parametrize(("rate", "length"), [(0.1 * 0.1, 40), (0.1 * 0.1**2, 400), (0.03, 13)])
def test_a_round_has_low_times_peak_by_rate_steps_whatever_floats_make_of_it(rate, length):
    assert LocalSteps(low=4, high=1000).length(step=0, fall=0.1 / rate) == length
