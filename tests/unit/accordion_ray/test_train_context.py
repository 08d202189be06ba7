"""What Ray Train tells about the run; its private names, of which a new Ray may move one."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from types import SimpleNamespace

import pytest
import ray
from torch import nn

from accordion.base.errors import HookError
from accordion.hook.attach_refusal import refuse_attach
from accordion.session.training_warnings import TrainingWarning
from accordion_ray import attach, train_context
from accordion_ray.errors import AttachError
from accordion_ray.train_context import (
    check_not_in_job,
    current_run,
    follow_reports,
    warn_of_other_ray,
)
from accordion_workers.controller.ray_releases import KNOWN

WAY_OUT = f"adapt workers/accordion_ray/train_context.py, which was tried with Ray {KNOWN}"


def test_ray_train_has_the_private_names_that_are_used() -> None:
    context = importlib.import_module("ray.train.v2._internal.execution.context")
    fields = {field.name for field in dataclasses.fields(context.TrainContext)}
    assert fields >= {"train_run_context", "execution_context"}, WAY_OUT
    fields = {field.name for field in dataclasses.fields(context.TrainRunContext)}
    assert fields >= {"run_id", "run_config"}, WAY_OUT
    members = {
        "report",
        "get_storage",
        "get_experiment_name",
        "get_world_rank",
        "get_synchronization_actor",
    }
    assert members <= set(dir(context.TrainContext)), WAY_OUT
    fields = {field.name for field in dataclasses.fields(context.ExecutionContext)}
    assert "training_thread_runner" in fields, WAY_OUT
    runner = importlib.import_module(
        "ray.train.v2._internal.execution.worker_group.thread_runner"
    ).ThreadRunner
    assert hasattr(runner, "get_error"), WAY_OUT
    wrapped = importlib.import_module(
        "ray.train.v2._internal.exceptions"
    ).UserExceptionWithTraceback
    assert wrapped(ValueError("x"), "")._base_exc.args == ("x",), WAY_OUT


def test_a_call_outside_of_ray_train_names_the_way_out() -> None:
    with pytest.raises(
        AttachError, match=r"outside of a Ray Train training function.*accordion\.attach"
    ):
        current_run()


def test_a_call_in_a_job_of_the_service_names_the_way_out() -> None:
    with pytest.raises(
        AttachError, match=r"in a job of the Accordion service.*session of accordion_workers"
    ):
        check_not_in_job(SimpleNamespace(get_synchronization_actor=lambda: None))


def test_a_call_in_a_process_that_refuses_attach_says_so_first() -> None:
    """A job on the engine of plain actors has no Ray Train."""
    with refuse_attach("not here"), pytest.raises(HookError, match="not here"):
        attach(nn.Linear(8, 8), [])


def test_another_release_of_ray_is_warned_of() -> None:
    with pytest.warns(TrainingWarning, match=r"Ray 2\.61\.0 is installed.*training continues"):
        warn_of_other_ray("2.61.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_other_ray(ray.__version__)


def test_reports_are_followed_and_made(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    context = SimpleNamespace(report=lambda *given: calls.append(given))
    monkeypatch.setattr(train_context, "_train_context", lambda: context)
    follow_reports(calls.append, lambda: calls.append("after"))
    context.report({"loss": 1.0}, "checkpoint")
    assert calls == [{"loss": 1.0}, ({"loss": 1.0}, "checkpoint"), "after"]
