"""Private names of Ray Train that `workers/ray_train_internals.py` extends; a new Ray that moves one fails here."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping

import pytest
import ray

from workers.ray_train import RAY_SERIES

V2 = "ray.train.v2"
EXECUTION = f"{V2}._internal.execution"
MEMBERS: Mapping[str, set[str]] = {
    f"{EXECUTION}.worker_group:WorkerGroup": {
        "_start_impl", "_poll_workers_and_collect_errors", "_assign_worker_ranks", "get_resources_per_worker",
        "get_workers", "poll_status", "execute_single", "abort", "shutdown",
    },
    f"{EXECUTION}.worker_group.worker:RayTrainWorker": {"init_train_context"},
    f"{EXECUTION}.controller:TrainController": {"worker_group_cls", "run", "_step", "_poll_workers", "get_state"},
    f"{EXECUTION}.scaling_policy:ScalingPolicy": {
        "make_decision_for_non_running_worker_group", "make_decision_for_running_worker_group",
        "_get_num_workers_for_resource_request",
    },
    f"{EXECUTION}.train_fn_utils:DistributedTrainFnUtils": {
        "report", "get_checkpoint", "get_all_reported_checkpoints", "get_preemption_info", "get_dataset_shard",
        "barrier", "broadcast_from_rank_zero", "get_context",
    },
    f"{V2}.api.data_parallel_trainer:DataParallelTrainer": {
        "fit", "_create_default_callbacks", "_initialize_and_run_controller",
    },
    "ray.train.backend:BackendConfig": {"framework"},
}  # fmt: skip
"""Classes as `module:name`, each with the members that are overridden or called."""
WAY_OUT = (
    f"adapt workers/ray_train_internals.py, which was written for Ray {RAY_SERIES}, and raise RAY_SERIES in "
    "workers/ray_train.py with the pin in pyproject.toml; until then jobs run with workers.engine: actors"
)


@pytest.mark.parametrize("path", MEMBERS)
def test_ray_train_has_the_private_names_that_the_engine_extends(path: str) -> None:
    module, _, name = path.partition(":")
    try:
        members = set(dir(getattr(importlib.import_module(module), name)))
    except (ImportError, AttributeError):
        pytest.fail(f"Ray {ray.__version__} has no {name} in {module}; {WAY_OUT}")
    missing = sorted(MEMBERS[path] - members)
    assert not missing, f"{name} of Ray {ray.__version__} has no {', '.join(missing)}; {WAY_OUT}"


def test_the_pinned_ray_is_the_one_that_the_engine_was_made_for() -> None:
    assert ray.__version__.startswith(f"{RAY_SERIES}."), f"Ray {ray.__version__} is installed; {WAY_OUT}"


def test_every_name_that_the_engine_imports_is_there() -> None:
    internals = importlib.import_module("workers.ray_train_internals")
    assert issubclass(internals.Roster, importlib.import_module(f"{EXECUTION}.worker_group").WorkerGroup)


def test_the_controller_takes_the_arguments_that_the_trainer_gives() -> None:
    controller = importlib.import_module(f"{EXECUTION}.controller").TrainController
    named = set(inspect.signature(controller.__init__).parameters)
    assert named >= {"train_fn_ref", "train_run_context", "scaling_policy", "failure_policy", "callbacks"}, WAY_OUT
