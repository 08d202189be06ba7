"""The objective of a job: improvements, patience, and the metric's name."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from accordion_workers.records.contract import JobSpec
from accordion_workers.spec.objective import ObjectiveSpec, describe_early_end
from accordion_workers.tasks import TASKS
from accordion_workers.training.objective import ObjectiveProgress, read_objective

VALUES = st.lists(
    st.one_of(st.none(), st.just(math.nan), st.integers(-3, 3).map(float)), max_size=12
)


def objective(**parts: Any) -> ObjectiveSpec:
    return ObjectiveSpec.model_validate({"metric": "accuracy", "mode": "max", **parts})


def follow(spec: ObjectiveSpec, values: list[float | None]) -> ObjectiveProgress:
    progress = ObjectiveProgress()
    for value in values:
        progress = progress.after(spec, value)
    return progress


@given(VALUES, st.sampled_from(["min", "max"]))
def test_the_best_value_is_that_of_all_epochs(values: list[float | None], mode: str) -> None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    found = follow(objective(mode=mode), values)
    assert found.best == ({"min": min, "max": max}[mode](finite) if finite else None)
    if finite:
        assert found.stale_epochs == len(values) - 1 - values.index(found.best)
    else:
        assert found.stale_epochs == len(values)
    assert found.has_improved == (bool(finite) and found.stale_epochs == 0)


@given(VALUES)
def test_an_epoch_without_an_evaluation_changes_neither_the_best_nor_the_count(
    values: list[float | None],
) -> None:
    spec = objective()
    before = follow(spec, values)
    after = before.after_unmeasured()
    assert (after.newest, after.has_improved) == (None, False)
    assert (after.best, after.stale_epochs) == (before.best, before.stale_epochs)


@given(VALUES, st.integers(1, 4), st.sampled_from([0.0, 1.0, 2.0]))
def test_negated_values_are_minimized_alike(
    values: list[float | None], patience: int, min_delta: float
) -> None:
    negated = [None if value is None else -value for value in values]
    largest = objective(patience=patience, min_delta=min_delta)
    smallest = objective(patience=patience, min_delta=min_delta, mode="min")
    found, mirrored = follow(largest, values), follow(smallest, negated)
    assert found.stale_epochs == mirrored.stale_epochs
    assert found.is_exhausted(largest) == mirrored.is_exhausted(smallest)


@pytest.mark.parametrize(
    ("values", "is_exhausted"),
    [
        ([0.5], False),
        ([0.5, 0.505, 0.509], True),
        ([0.5, 0.505, 0.51], False),
        ([0.5, None, math.nan], True),
        ([None, None], True),
        ([0.5, 0.4, 0.6], False),
    ],
)
def test_small_gains_do_not_count(values: list[float | None], is_exhausted: bool) -> None:
    spec = objective(patience=2, min_delta=0.01)
    assert follow(spec, values).is_exhausted(spec) == is_exhausted


def test_without_patience_training_never_ends_early() -> None:
    for spec in (None, objective()):
        assert not ObjectiveProgress(stale_epochs=10**6).is_exhausted(spec)


def test_a_metric_that_is_not_measured_is_refused_with_those_that_are() -> None:
    metrics = {"accuracy": 0.5}
    assert read_objective(objective(), metrics, measured=["accuracy", "loss"]) == 0.5
    assert read_objective(objective(metric="loss"), metrics, measured=["accuracy", "loss"]) is None
    with pytest.raises(ValueError, match="'f1', and the evaluation has accuracy, loss; give one"):
        read_objective(objective(metric="f1"), metrics, measured=["loss", "accuracy"])
    with pytest.raises(
        ValueError, match=r"without metrics; give it to session.end_epoch\(f1=...\)"
    ):
        read_objective(objective(metric="f1"), {}, measured=[])


def test_a_metric_that_a_task_lacks_is_refused_at_submission() -> None:
    spec = {"task": {"name": "digits-mlp"}, "objective": {"metric": "acc", "mode": "max"}}
    with pytest.raises(ValidationError, match="task digits-mlp has accuracy, loss; give one"):
        JobSpec.model_validate(spec)
    spec["task"] = {"name": "my.module:Task"}
    assert JobSpec.model_validate(spec).objective == objective(metric="acc")


@pytest.mark.parametrize("name", TASKS)
def test_the_table_of_tasks_names_the_metrics(name: str) -> None:
    module, _, kind = TASKS[name].task.partition(":")
    task = object.__new__(getattr(importlib.import_module(module), kind))
    shape = (2, 4, 5) if name.startswith("lm") else (2, 5)
    outputs = torch.randn(shape)
    targets = outputs if name == "synthetic" else torch.zeros(shape[:-1], dtype=torch.long)
    assert set(task.metrics(outputs, targets)) == set(TASKS[name].metrics)


def test_an_early_end_is_described() -> None:
    assert describe_early_end(objective(patience=1)) == (
        "training ended early: accuracy did not improve in 1 evaluation"
    )
    assert describe_early_end(objective(patience=3)).endswith("in 3 evaluations")
