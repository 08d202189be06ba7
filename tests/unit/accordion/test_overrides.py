"""Overrides: what a person may ask for, for which layers and epochs, and who wins."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.errors import OverrideError
from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Decision, Override
from accordion.config import BatchConfig, Config
from accordion.decide.override_levels import resolve_batch, resolve_level, resolve_local_steps
from accordion.decide.override_types import check_types
from accordion.decide.overrides import check_interval, check_layers, matching_layers
from tests.unit.accordion.reports import NAMES, controller, report

INTERVALS = st.tuples(st.integers(0, 9), st.none() | st.integers(1, 12))


def override(id: str = "o1", level: object = "high", **fields: object) -> Override:  # noqa: A002
    return Override(id=id, level=level, **fields)


def names(decision: Decision) -> list[str]:
    return [decision.level_by_layer[name].name for name in NAMES]


@pytest.mark.parametrize(
    ("level", "name", "method"),
    [
        ("high", "high", "powersgd"),
        (0, "low", "powersgd"),
        (1, "high", "powersgd"),
        ({"rank": 2}, "rank=2", "powersgd"),
        ({}, "powersgd", "powersgd"),
        ({"method": "none"}, "none", "none"),
        ({"method": "topk", "density": 0.5}, "topk density=0.5", "topk"),
    ],
)
def test_a_level_is_a_rung_its_index_or_options(level, name, method) -> None:
    decision = controller().override([override(level=level)], epoch=0, step=3)
    assert {(made.name, made.method) for made in decision.level_by_layer.values()} == {
        (name, method)
    }


@pytest.mark.parametrize("level", ["middle", 2, -1, True, 1.0])
def test_an_unknown_level_is_refused_with_the_known_ones(level) -> None:
    with pytest.raises(
        OverrideError, match=r"override o1: unknown level .*; known are low \(0\), high \(1\)"
    ):
        controller().override([override(level=level)], epoch=0, step=0)


@pytest.mark.parametrize("level", [{"rang": 2}, {"rank": 0}, {"method": "zip"}, {"method": 3}])
def test_options_that_no_method_takes_are_refused_by_name(level) -> None:
    with pytest.raises(OverrideError, match="override o1: "):
        controller().override([override(level=level)], epoch=0, step=0)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (override(), r"overrides is Override\(.*; give a list"),
        ("low", "overrides has 'l'; give objects of accordion.Override"),
        ([{"level": "low"}], r"overrides has \{'level'.*; give objects of accordion.Override"),
        ([override(id=3)], "id is 3; give a text"),
        ([override(id="")], "id is ''; give a text"),
        ([override(), override(level=0)], "2 overrides have the id 'o1'; give each its own"),
        ([override(target="lr_factor")], "target is 'lr_factor'; give one of compression, .*lr"),
        ([override(layers="2.*")], r"layers is '2\.\*'; give a tuple of globs"),
        ([override(layers=())], r"layers is \(\); give a tuple of globs"),
        ([override(layers=(2,))], r"layers is \(2,\); give a tuple of globs"),
    ],
)
def test_what_is_no_set_of_overrides_is_refused(overrides, sentence) -> None:
    with pytest.raises(OverrideError, match=sentence):
        check_types(overrides)


def test_a_glob_without_a_layer_is_refused_with_the_layers() -> None:
    with pytest.raises(
        OverrideError,
        match=r"no layer matches 'FC\*'; layers are fc1.weight, fc2.weight, head.weight",
    ):
        controller().override([override(layers=("fc*", "FC*"))], epoch=0, step=0)


def test_an_override_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(OverrideError, match="until is 3"):
        controller().check_override(override(apply_at=3, until=3))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"apply_at": "foo"}, "apply_at is 'foo'; give 'next_step'"),
        ({"apply_at": -1}, "apply_at is -1"),
        ({"until": "soon"}, "until is 'soon'; give an epoch"),
        ({"until": -1}, "until is -1"),
    ],
)
def test_epochs_that_are_none_are_refused(fields, sentence) -> None:
    with pytest.raises(OverrideError, match=sentence):
        controller().check_override(override(**fields))


def test_a_refused_set_leaves_the_former_one_in_force() -> None:
    ours = controller()
    before = ours.override([override()], epoch=0, step=3)
    with pytest.raises(OverrideError):
        ours.override([override("o2", "low"), override("o3", "middle")], epoch=0, step=4)
    assert ours.decision is before
    assert ours.decide(report(0)).override_by_layer == before.override_by_layer


def test_only_the_layers_that_match_are_taken_from_the_policy() -> None:
    ours = controller()
    decision = ours.override([override(layers=("fc*",))], epoch=0, step=3)
    assert names(decision) == ["high", "high", "low"]
    assert decision.override_by_layer == {"fc1.weight": "o1", "fc2.weight": "o1"}
    assert {level.name for level in ours.policy_levels.values()} == {"low"}


def test_an_override_decision_holds_from_the_step_it_is_given() -> None:
    decision = controller().override([override(until=30)], epoch=2, step=25)
    assert (decision.epoch, decision.step, decision.cause) == (2, 25, "override")
    assert decision.reason == "override o1 holds 3 of 3 layers at high until epoch 30"


def test_an_override_of_a_service_goes_by_its_number_in_reasons_and_refusals() -> None:
    ours, id_ = controller(), "01a219c8-a17c-734c-af69-bfa56a6cc32a"
    decision = ours.override([override(id_, number=3)], epoch=0, step=3)
    assert decision.reason == "override 3 holds 3 of 3 layers at high"
    with pytest.raises(OverrideError, match=r"^override 4: unknown level"):
        ours.override([override(id_, "middle", number=4)], epoch=0, step=4)


def test_taking_all_overrides_away_hands_back_to_the_policy() -> None:
    ours = controller()
    ours.override([override()], epoch=0, step=3)
    decision = ours.override([], epoch=0, step=4)
    assert names(decision) == ["low", "low", "low"]
    assert decision.reason == "no override holds in epoch 0: the policy decides"


@given(start_until=INTERVALS)
def test_an_override_holds_from_its_first_epoch_and_no_longer_in_its_last(start_until) -> None:
    start, until = start_until
    ours = controller()
    ours.override([override(apply_at=start, until=until and start + until)], epoch=0, step=0)
    for epoch in range(12):
        decision = ours.decide(report(epoch))
        holds = start <= decision.epoch and (until is None or decision.epoch < start + until)
        assert bool(decision.override_by_layer) == holds


def test_next_epoch_is_counted_from_the_epoch_in_which_the_override_is_seen_first() -> None:
    ours = controller()
    late = override(apply_at="next_epoch")
    assert not ours.override([late], epoch=4, step=45).override_by_layer
    assert ours.decide(report(4)).override_by_layer
    assert ours.override(
        [late, override("o2", 0, layers=("head*",))], epoch=5, step=55
    ).override_by_layer


def test_a_saved_start_is_not_counted_anew() -> None:
    ours, later = controller(), controller()
    late = override(apply_at="next_epoch")
    ours.override([late], epoch=4, step=45)
    later.load_state_dict(ours.state_dict())
    assert later.override([late], epoch=5, step=55).override_by_layer


@given(numbers=st.permutations([1, 2, 3]))
def test_where_overrides_overlap_the_newest_wins_layer_by_layer_in_any_order(numbers) -> None:
    globs = {1: "*", 2: "fc*", 3: "fc2*"}
    overrides = [override(f"o{n}", {"rank": 10 + n}, layers=(globs[n],), number=n) for n in numbers]
    decision = controller().override(overrides, epoch=0, step=0)
    assert names(decision) == ["rank=12", "rank=13", "rank=11"]
    assert list(decision.override_by_layer.values()).count("o2") == 1


def test_a_window_still_judges_layers_that_a_person_holds() -> None:
    ours = controller()
    ours.override([override(level="low")], epoch=0, step=0)
    ours.decide(report(0, 1.0))
    decision = ours.decide(report(1, 1.0))
    assert set(decision.regime_by_layer.values()) == {"stable"}
    assert names(decision) == ["low"] * 3
    assert decision.reason.endswith("; override o1 holds 3 of 3 layers at low")


LADDER = Config().ladder()
BATCH = BatchConfig(low=64, high=512)


def assert_field(field: str | None, check: Callable[..., object], *given: object, **more: object):
    """Assert that a check refuses this field; None is accepted."""
    if field is None:
        check(*given, **more)
        return
    with pytest.raises(OverrideError) as refused:
        check(*given, **more)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("level", "field"),
    [
        (LADDER[0].name, None),
        ("no-such-rung", "level"),
        (0, None),
        (len(LADDER) - 1, None),
        (len(LADDER), "level"),
        ({"rank": 3}, None),
        ({"rank": 0}, "level"),
        ({"method": "topk", "density": 0.5}, None),
        ({"method": "no-such-method"}, "level"),
    ],
)
def test_a_wrong_level_is_refused_with_its_field(level, field) -> None:
    assert_field(field, resolve_level, level, LADDER)


@pytest.mark.parametrize(
    ("level", "layers", "field"),
    [
        ("low", ["*"], None),
        ("high", ["*"], None),
        ("middle", ["*"], "level"),
        (8, ["*"], None),
        (7, ["*"], "level"),
        ({"rank": 2}, ["*"], "level"),
        ("low", ["fc1"], "layers"),
    ],
)
def test_a_batch_is_a_level_or_large_enough(level, layers, field) -> None:
    assert_field(field, resolve_batch, level, layers, batch=BATCH, minimum=8)


def test_a_job_without_batch_levels_keeps_its_batch() -> None:
    assert_field("target", resolve_batch, "low", ["*"], batch=None)


@pytest.mark.parametrize(
    ("level", "layers", "field"),
    [
        ("low", ["*"], None),
        ("high", ["*"], None),
        (1, ["*"], None),
        (16, ["*"], None),
        (17, ["*"], "level"),
        (0, ["*"], "level"),
        (True, ["*"], "level"),
        ("middle", ["*"], "level"),
        ({"rank": 2}, ["*"], "level"),
        ("low", ["fc1"], "layers"),
    ],
)
def test_local_steps_are_a_level_or_a_number_that_the_ladder_reaches(level, layers, field) -> None:
    local = LocalSteps(low=4, high=16)
    assert_field(field, resolve_local_steps, level, layers, local=local)


def test_a_job_without_local_steps_exchanges_in_every_step() -> None:
    assert_field("target", resolve_local_steps, "low", ["*"], local=None)


@pytest.mark.parametrize(
    ("apply_at", "until", "field"),
    [
        ("next_step", None, None),
        ("next_step", 5, "until"),
        ("next_epoch", None, None),
        (9, None, None),
        (10, None, "apply_at"),
        (0, 6, None),
        (0, 5, "until"),
        (7, 8, None),
        (7, 7, "until"),
        ("next_epoch", 7, None),
        ("next_epoch", 6, "until"),
    ],
)
def test_an_interval_needs_an_epoch_that_is_still_to_come(apply_at, until, field) -> None:
    assert_field(field, check_interval, apply_at, until, epoch=5, epochs=10)


@pytest.mark.parametrize(("apply_at", "field"), [("next_step", None), ("next_epoch", "apply_at")])
def test_the_last_epoch_has_no_next_one(apply_at, field) -> None:
    assert_field(field, check_interval, apply_at, None, epoch=9, epochs=10)


@pytest.mark.parametrize(
    ("globs", "field"),
    [(["fc*", "fc1"], None), (["fc1", "conv*"], "layers/1"), (["FC1"], "layers/0")],
)
def test_every_glob_has_to_match_a_layer(globs, field) -> None:
    assert_field(field, check_layers, globs, ["fc1", "fc2"])


def test_layers_match_if_one_of_the_globs_does() -> None:
    assert matching_layers(["fc[12]", "head"], ["fc1", "fc2", "fc3", "head"]) == (
        "fc1",
        "fc2",
        "head",
    )
