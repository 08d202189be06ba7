"""Policy `cost_aware`: the length of rounds of local steps, by made-up times."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.errors import ConfigError
from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Decision, Override
from accordion.config import Config
from accordion.decide.controller import Controller
from accordion.policies.policy_input import PolicyInput
from accordion.policies.round_length import decide_length, observe_round
from tests.unit.accordion.reports import LAYERS, NAMES, report

SHARE = 0.05
TIMES = st.floats(1e-6, 1e3)


def told(exchange_s: float, step_s: float, *, length: int = 1, state=None) -> PolicyInput:
    """A report of rounds of this length, in which an exchange takes so long and a step besides."""
    return PolicyInput(
        epoch=1,
        regime_by_layer={},
        ladder_by_layer={},
        size_by_layer={},
        most_local_steps=1_000_000,
        options={"wait_share": SHARE},
        state=state or {},
        local_steps=length,
        exchange_wait_s=exchange_s / length,
        step_s=step_s + exchange_s / length,
    )


def after(seen: PolicyInput) -> PolicyInput:
    return replace(seen, state={"rounds": observe_round(seen, seen.exchange_wait_s)})


def next_length(*args: float, **more: object) -> int:
    return decide_length(after(told(*args, **more)))


def wait_share(exchange_s: float, step_s: float, length: int) -> float:
    return exchange_s / (exchange_s + length * step_s)


@given(TIMES, TIMES, st.integers(1, 1000))
def test_a_round_is_the_shortest_in_which_waiting_takes_its_share_or_near_it(
    exchange_s, step_s, before
) -> None:
    state = {"rounds": {"length": before, "exchange_s": 0.0, "step_s": 1.0}}
    length = next_length(exchange_s, step_s, state=state)
    if length < 1_000_000:
        assert wait_share(exchange_s, step_s, length) <= SHARE * 1.2001
    if length > 1:
        assert wait_share(1.2001 * exchange_s, step_s, length - 1) > SHARE


@pytest.mark.parametrize(
    ("exchange_s", "length"), [(0.0, 1), (0.005, 1), (0.01, 2), (0.1, 19), (1.0, 190)]
)
def test_the_first_length_follows_from_the_wait_of_a_step(exchange_s, length) -> None:
    assert next_length(exchange_s, 0.1) == length


def test_in_rounds_the_whole_exchange_counts_and_not_the_mean_of_a_step() -> None:
    seen = after(told(0.05, 0.1))
    assert decide_length(seen) == 10
    assert next_length(0.2, 0.1, length=10, state=seen.state) == 38


@pytest.mark.parametrize("exchange_s", [0.085, 0.115])
@pytest.mark.parametrize("in_force", [1, 19])
def test_noise_does_not_change_the_length(exchange_s, in_force) -> None:
    state = after(told(0.1, 0.1)).state
    assert next_length(exchange_s, 0.1, length=in_force, state=state) == 19


def test_noise_between_one_step_and_two_changes_nothing() -> None:
    lengths, state = [], {}
    for exchange_s in (0.0055, 0.006, 0.005, 0.0075, 0.005, 0.0048, 0.006):
        seen = after(told(exchange_s, 0.1, state=state))
        lengths.append(decide_length(seen))
        state = seen.state
    assert lengths == [1, 1, 1, 2, 2, 2, 2]


def test_rounds_end_when_a_whole_exchange_is_cheap() -> None:
    state = after(told(0.1, 0.1)).state
    assert next_length(0.02, 0.1, length=19, state=state) == 4
    assert next_length(0.003, 0.1, length=19, state=state) == 1


@pytest.mark.parametrize(
    ("wait_s", "step_s"), [(None, None), (None, 0.1), (0.1, None), (0.1, 0.1), (0.2, 0.1)]
)
def test_reports_without_usable_times_change_no_length(wait_s, step_s) -> None:
    state = after(told(0.1, 0.1)).state
    unknown = replace(told(0.0, 1.0, state=state), exchange_wait_s=wait_s, step_s=step_s)
    assert decide_length(after(unknown)) == 19
    assert decide_length(replace(unknown, state={})) == 1


ALL_HIGH = {name: {"none": 9.0, "half": 6.0, "low": 3.0, "high": 0.6} for name in NAMES}


def controller(**local: object) -> Controller:
    steps = LocalSteps(**{"low": 4, "high": 64, **local})
    return Controller(Config(method="qsgd", policy="cost_aware", local_steps=steps), LAYERS)


def decide(one: Controller, epoch: int, wait_s: float, **more: object) -> Decision:
    times = {"exchange_wait_s": wait_s, "step_s": 0.1 + wait_s}
    return one.decide(report(epoch, 1.0, **times, **more))


def test_rounds_begin_when_waits_are_measured_and_never_exceed_what_the_rate_allows() -> None:
    one = controller()
    assert one.decision.local_steps == 1
    first = decide(one, 0, 0.1)
    assert first.local_steps == 4
    assert "rounds have 4 steps because an exchange delays them by 100 ms" in first.reason
    assert "a step takes 100 ms, and waiting may take 0.05 of the time (wait_share)" in first.reason
    assert "19 steps would be enough, but local_steps allows 4 now" in first.reason
    fallen = decide(one, 1, 0.025, local_steps=4, lr=0.01)
    assert fallen.local_steps == 19
    assert "local_steps allows" not in fallen.reason


def test_on_a_fast_link_gradients_are_exchanged_in_every_step() -> None:
    decision = decide(controller(), 0, 0.004)
    assert decision.local_steps == 1
    assert "gradients are exchanged in every step because" in decision.reason


def test_the_start_of_a_run_stays_and_its_end_is_the_policys() -> None:
    one = controller(start_steps=15)
    started = decide(one, 0, 0.004)
    assert started.local_steps == 1
    assert "exchanged in every step" not in started.reason
    assert one.end_start(epoch=1, step=15).local_steps == 1
    assert decide(one, 1, 0.1).local_steps == 4


def test_levels_are_chosen_before_rounds_and_stay_within_them() -> None:
    one = controller()
    first = decide(one, 0, 2.0, cost_s_by_layer=ALL_HIGH)
    assert first.local_steps == 4
    costs = {name: {**ALL_HIGH[name], "none": 0.0} for name in NAMES}
    later = decide(one, 1, 0.5, cost_s_by_layer=costs, local_steps=4)
    assert later.level_by_layer == first.level_by_layer


def test_a_level_that_comes_into_force_gives_the_length_by_its_predicted_wait() -> None:
    one = controller()
    half = {name: {"none": 3.0, "half": 0.001, "low": 1.0, "high": 1.0} for name in NAMES}
    decision = decide(one, 0, 2.0, cost_s_by_layer=half)
    assert {level.name for level in decision.level_by_layer.values()} == {"half"}
    assert decision.local_steps == 1


def test_an_override_holds_and_the_policy_goes_on_measuring() -> None:
    one = controller()
    one.override([Override(id="mine", target="local_steps", level=8, until=2)], epoch=0, step=0)
    held = decide(one, 0, 0.0125, local_steps=8, lr=0.01)
    assert (held.local_steps, held.policy_local_steps) == (8, 4)
    assert decide(one, 1, 0.0125, local_steps=8, lr=0.001).local_steps == 19


def test_the_length_survives_a_resume() -> None:
    one, again = controller(), controller()
    decide(one, 0, 0.1)
    again.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert again.override([], epoch=1, step=10).local_steps == 4


def test_a_longest_wait_is_a_length_too() -> None:
    assert math.isfinite(next_length(1e300, 1e-300))


def test_fixed_buckets_are_refused_because_nothing_is_measured_with_them() -> None:
    local = LocalSteps(low=4, high=4)
    with pytest.raises(ConfigError, match="with buckets_per_exchange='all' none are measured"):
        Config(method="qsgd", policy="cost_aware", local_steps=local, buckets_per_exchange="all")


def test_overlap_hides_the_waits_that_cost_aware_goes_by():
    local = LocalSteps(low=4, high=8, overlap=2)
    with pytest.raises(ConfigError, match=r"which local_steps\.overlap=2 hides; leave one"):
        Config(method="qsgd", policy="cost_aware", local_steps=local)
