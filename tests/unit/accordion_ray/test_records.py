"""What a guest run says of itself: only what it knows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from accordion.base.local_steps import LocalSteps
from accordion.config import Config, DetectorConfig, LayerPlan, Window
from accordion_ray.records import (
    find_loss,
    is_last_failure,
    keep_finite_numbers,
    known_spec,
    make_label,
)
from accordion_workers.records.contract import JobSpec
from accordion_workers.spec.types import Label

CONFIG = Config(
    method="topk",
    by_layer={"a*": LayerPlan(method="none")},
    detector=DetectorConfig(window=Window(steps=50)),
    seed=3,
)


def spec_of(config: Config = CONFIG, **changes: object) -> JobSpec:
    known = {
        "name": "digits",
        "world_size": 2,
        "global_batch": 0,
        "resources": {"CPU": 2.0},
        **changes,
    }
    return known_spec(config, **known)


def test_only_fields_that_are_known_are_set() -> None:
    known = spec_of().model_dump(exclude_unset=True)
    assert known.keys() == {"name", "task", "workers", "training", "compression", "policy"}
    assert known["task"] == {"name": "guest"}
    assert known["workers"] == {"min": 2, "max": 2, "cpus": 2.0, "gpus": 0.0}
    assert known["training"] == {"seed": 3}
    assert known["policy"]["window"] == {"steps": 50}


@pytest.mark.parametrize("window", [Window(steps=50), Window(epochs=3)])
def test_the_spec_gives_the_settings_of_the_session(window: Window) -> None:
    config = Config(
        method="qsgd", detector=DetectorConfig(window=window, threshold=0.3, lr_drop=0.2), seed=5
    )
    there = spec_of(config).config()
    assert (there.method, there.detector, there.seed) == (
        config.method,
        config.detector,
        config.seed,
    )
    assert there.ladder() == config.ladder()


def test_the_spec_tells_the_local_steps_of_the_session() -> None:
    local = LocalSteps(low=3, high=9, start_steps=5, outer="average")
    there = spec_of(Config(method="qsgd", local_steps=local)).config()
    assert there.local_steps == local


@pytest.mark.parametrize(
    "resources", [{}, {"CPU": 0.0}, {"CPU": 1.0, "GPU": 0.5}, {"CPU": 1.0, "GPU": 2.0}]
)
def test_any_resources_of_a_worker_are_taken(resources: dict[str, float]) -> None:
    spec_of(resources=resources, world_size=8)


@pytest.mark.parametrize(
    ("config", "changes", "section", "left"),
    [
        (CONFIG, {"world_size": 2000}, "workers", {"cpus": 2.0, "gpus": 0.0}),
        (replace(CONFIG, seed=-1), {}, "training", {}),
        (replace(CONFIG, seed=2**40), {"global_batch": 8}, "training", {"global_batch": 8}),
        (CONFIG, {"global_batch": 10**9}, "training", {"seed": 3}),
    ],
)
def test_a_value_that_the_service_does_not_take_is_left_out(
    config: Config, changes: dict[str, int], section: str, left: dict[str, float]
) -> None:
    known = spec_of(config, **changes).model_dump(exclude_unset=True)
    assert known[section] == left
    assert known["compression"]["method"] == "topk"


def test_a_name_that_the_service_does_not_take_is_refused() -> None:
    with pytest.raises(ValidationError, match="name"):
        spec_of(name="")


@given(st.text(max_size=100))
def test_every_name_becomes_a_label(name: str) -> None:
    label = make_label(name)
    assert TypeAdapter(Label).validate_python(label) == label


@pytest.mark.parametrize("name", ["digits", "ray_train_run-2026-11-22_12-00-00"])
def test_a_usual_name_stays_as_it_is(name: str) -> None:
    assert make_label(name) == name


def test_the_training_loss_is_known_by_its_name() -> None:
    assert find_loss({"loss": 2.0, "train_loss": 1.0}) == 1.0
    assert find_loss({"loss": 2.0}) == 2.0
    assert find_loss({"accuracy": 2.0}) is None


@pytest.mark.parametrize(
    ("recorded", "max_failures", "is_last"),
    [(0, 0, True), (0, 1, False), (1, 1, True), (9, -1, False)],
)
def test_a_failure_is_the_last_where_no_restart_is_left(
    recorded: int, max_failures: int, is_last: bool
) -> None:
    assert is_last_failure(recorded, max_failures) == is_last


def test_numbers_that_are_too_large_are_left_out() -> None:
    assert keep_finite_numbers({"a": 10**400, "b": 2, "c": float("inf")}) == {"b": 2.0}
