"""Settings of the optimizer as overrides: what a user may set, for how long, and what is left."""

from __future__ import annotations

import json

import pytest

from accordion.base.errors import ConfigError, OverrideError
from accordion.base.local_steps import LocalSteps
from accordion.base.messages import (
    Override,
    decision_from_json,
    plan_digest,
    to_json,
)
from accordion.config import Config
from accordion.decide.controller import Controller
from tests.unit.accordion.reports import controller, report

RANGES = {"lr": (0.001, 0.4), "weight_decay": (0.0, 0.1), "clip_norm": (0.0, 10.0)}


def job(ranges: dict[str, tuple[float, float]] | None = None) -> Controller:
    return controller(optimizer_ranges=RANGES if ranges is None else ranges)


def by_hand(target: str, level: object, number: int = 1, **fields: object) -> Override:
    given = {"id": f"o{number}", "number": number, "target": target, "level": level}
    return Override(**{**given, **fields})


@pytest.mark.parametrize(
    ("target", "level", "held"),
    [
        ("lr", 0.001, {"lr": 0.001}),
        ("lr", 0.4, {"lr": 0.4}),
        ("lr", {"factor": 0.5}, {"lr_factor": 0.5}),
        ("weight_decay", 0, {"weight_decay": 0.0}),
        ("clip_norm", 10, {"clip_norm": 10.0}),
    ],
)
def test_a_user_sets_a_number_or_a_factor_of_the_rate(target, level, held) -> None:
    ours = job()
    decision = ours.override([by_hand(target, level, until=9)], epoch=2, step=21)
    assert decision.optimizer == held
    assert decision.optimizer_overrides == {target: "o1"}
    assert decision.override_ids == ("o1",)
    ((name, value),) = held.items()
    assert decision.reason == f"override 1 holds {name} at {value:g} until epoch 9"


@pytest.mark.parametrize(
    ("target", "level", "message"),
    [
        ("lr", 0.5, "lr is 0.5; give a number from 0.001 to 0.4"),
        ("lr", 0, "lr is 0; give a number from 0.001 to 0.4"),
        ("lr", float("nan"), "lr is nan"),
        ("lr", True, "lr is True; give a number from 0.001 to 0.4, or factor=0.5"),
        ("lr", "low", "lr is 'low'; give a number from 0.001 to 0.4, or factor=0.5"),
        ("lr", {"factor": 0}, "the factor of lr is 0; give a number above 0, up to 1000"),
        ("lr", {"factor": "half"}, "the factor of lr is 'half'"),
        ("lr", {"factor": 0.5, "rank": 2}, "lr is {'factor': 0.5, 'rank': 2}; give a number"),
        (
            "weight_decay",
            {"factor": 2},
            "weight_decay is {'factor': 2}; give a number from 0 to 0.1$",
        ),
        ("weight_decay", 0.2, "weight_decay is 0.2; give a number from 0 to 0.1"),
        ("clip_norm", 0, "clip_norm is 0; give a number above 0, up to 10"),
        ("clip_norm", 10**400, "clip_norm is 1000"),
    ],
)
def test_what_is_outside_the_range_is_refused(target, level, message) -> None:
    ours = job()
    with pytest.raises(OverrideError, match=message) as caught:
        ours.override([by_hand(target, level)], epoch=0, step=0)
    assert caught.value.field == "level"
    assert ours.decision.optimizer == {}


def test_a_script_sets_its_own_optimizer() -> None:
    with pytest.raises(OverrideError, match="the script of this run sets lr of its optimizer"):
        job({}).override([by_hand("lr", 0.1)], epoch=0, step=0)


def test_settings_have_no_layers() -> None:
    with pytest.raises(OverrideError, match="lr applies to the whole model; leave out the layers"):
        job().override([by_hand("lr", 0.1, layers=("a",))], epoch=0, step=0)


def test_the_newest_override_of_each_setting_holds_and_goes_back_to_the_job_file() -> None:
    ours = job()
    orders = [
        by_hand("lr", 0.1, 1),
        by_hand("lr", {"factor": 2}, 2, until=1),
        by_hand("clip_norm", 1.0, 3),
    ]
    decision = ours.override(orders, epoch=0, step=0)
    assert decision.optimizer == {"lr_factor": 2.0, "clip_norm": 1.0}
    assert decision.optimizer_overrides == {"lr": "o2", "clip_norm": "o3"}
    assert ours.decide(report(0)).optimizer == {"lr": 0.1, "clip_norm": 1.0}
    assert ours.override([], epoch=1, step=12).optimizer == {}


def test_a_saved_override_holds_again() -> None:
    ours, again = job(), job()
    ours.override([by_hand("lr", {"factor": 0.5})], epoch=0, step=0)
    again.load_state_dict(json.loads(json.dumps(ours.state_dict())))
    assert again.decision == ours.decision
    assert again.decide(report(0)).optimizer == {"lr_factor": 0.5}
    assert decision_from_json(json.loads(json.dumps(to_json(ours.decision)))) == ours.decision


def test_ranks_confirm_what_their_optimizer_has() -> None:
    plain, half = plan_digest({}), plan_digest({}, optimizer={"lr_factor": 0.5})
    assert plain == plan_digest({}, optimizer={})
    assert len({plain, half, plan_digest({}, optimizer={"lr": 0.5})}) == 3


@pytest.mark.parametrize(
    "ranges", [{"momentum": (0, 1)}, *({"lr": one} for one in [(1, 0.1), (0.1,), 0.1, "01"])]
)
def test_a_range_that_is_none_is_refused(ranges) -> None:
    with pytest.raises(ConfigError, match="optimizer_ranges has"):
        Config(optimizer_ranges=ranges)


def test_a_rate_that_a_user_raised_for_a_while_is_no_peak_for_the_policy() -> None:
    ours = controller(
        method="half", local_steps=LocalSteps(low=4, high=64), optimizer_ranges=RANGES
    )
    ours.override([by_hand("lr", {"factor": 2}, until=2)], epoch=1, step=10)
    assert ours.decide(report(0, lr=0.1)).local_steps == 4
    assert ours.decide(report(1, lr=0.2, next_lr=0.1)).local_steps == 4
    assert ours.decide(report(2, lr=0.1, next_lr=0.05)).local_steps == 8
    ours.override([by_hand("lr", {"factor": 0.5}, 2)], epoch=3, step=30)
    assert ours.decide(report(3, lr=0.025)).local_steps == 16
