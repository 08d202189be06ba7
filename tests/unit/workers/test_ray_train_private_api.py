"""Private names of Ray Train that workers use; a new Ray that moves one fails here."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import ray

from accordion_workers.controller.ray_releases import KNOWN, NEWEST, is_known

ROOT = Path(__file__).parents[3]
V2 = "ray.train.v2"
EXECUTION = f"{V2}._internal.execution"
MEMBERS: Mapping[str, set[str]] = {
    f"{EXECUTION}.worker_group:WorkerGroup": {
        "_start_impl",
        "_poll_workers_and_collect_errors",
        "_assign_worker_ranks",
        "get_resources_per_worker",
        "get_workers",
        "poll_status",
        "execute_single",
        "abort",
        "shutdown",
    },
    f"{EXECUTION}.worker_group.worker:RayTrainWorker": {"init_train_context"},
    f"{EXECUTION}.controller:TrainController": {
        "worker_group_cls",
        "run",
        "_step",
        "_poll_workers",
        "get_state",
    },
    f"{EXECUTION}.scaling_policy:ScalingPolicy": {
        "make_decision_for_non_running_worker_group",
        "make_decision_for_running_worker_group",
        "_get_num_workers_for_resource_request",
    },
    f"{EXECUTION}.train_fn_utils:DistributedTrainFnUtils": {
        "report",
        "get_checkpoint",
        "get_all_reported_checkpoints",
        "get_preemption_info",
        "get_dataset_shard",
        "barrier",
        "broadcast_from_rank_zero",
        "get_context",
    },
    f"{V2}.api.data_parallel_trainer:DataParallelTrainer": {
        "fit",
        "_create_default_callbacks",
        "_initialize_and_run_controller",
    },
    f"{V2}.api.config:ScalingConfig": {"_resources_per_worker_not_none"},
    "ray.train.backend:BackendConfig": {"framework"},
}
"""Classes as `module:name`, each with the members that are overridden or called."""
NEW = (
    set()
    if ray.__version__.startswith(f"{NEWEST[0]}.{NEWEST[1]}.")
    else {"get_preemption_info", "worker_rank_to_replica_group_rank"}
)
"""What releases of Ray before the newest may lack: a method that nobody calls there, and an
argument that is left out.
"""
WAY_OUT = (
    "adapt controller/ray_train_internals.py and worker/ray_train_context.py of accordion_workers,"
    f" tried with Ray {KNOWN}, and raise NEWEST in controller/ray_releases.py; until then jobs run"
    " on plain actors"
)


@pytest.mark.parametrize("path", MEMBERS)
def test_ray_train_has_the_private_names_that_the_engine_extends(path: str) -> None:
    members = set(dir(ray_train_class(path)))
    name = path.partition(":")[2]
    missing = sorted(MEMBERS[path] - members - NEW)
    assert not missing, f"{name} of Ray {ray.__version__} has no {', '.join(missing)}; {WAY_OUT}"


def test_the_pinned_ray_is_the_one_that_the_engine_was_made_for() -> None:
    assert is_known(ray.__version__), f"Ray {ray.__version__} is installed; {WAY_OUT}"
    pinned = (ROOT / "constraints.txt").read_text()
    assert re.search(rf"^ray=={NEWEST[0]}\.{NEWEST[1]}\.", pinned, re.MULTILINE)


ARGUMENTS: Mapping[str, set[str]] = {
    f"{EXECUTION}.controller:TrainController": {
        "train_fn_ref",
        "train_run_context",
        "scaling_policy",
        "failure_policy",
        "callbacks",
    },
    f"{EXECUTION}.worker_group.worker:ActorMetadata": {
        "hostname",
        "node_id",
        "node_ip",
        "pid",
        "accelerator_ids",
    },
    f"{EXECUTION}.worker_group.worker:Worker": {"actor", "metadata", "resources"},
    f"{EXECUTION}.worker_group.poll:WorkerStatus": {"running", "error"},
    f"{EXECUTION}.worker_group:WorkerGroupPollStatus": {
        "worker_statuses",
        "worker_rank_to_replica_group_rank",
    },
    f"{EXECUTION}.worker_group:WorkerGroupState": {
        "start_time",
        "placement_group_handle",
        "workers",
        "sync_actor",
    },
    f"{EXECUTION}.context:DistributedContext": {
        "world_rank",
        "world_size",
        "local_rank",
        "local_world_size",
        "node_rank",
    },
}
"""Arguments by which Ray Train's classes are made here."""
SOURCES: Mapping[str, set[str]] = {
    f"{EXECUTION}.worker_group:WorkerGroup": {
        "self._callbacks",
        "self._worker_group_context",
        "self._worker_group_state",
        "self._train_run_context",
        "self._storage_context",
        "self._worker_callbacks_to_propagate",
        "self._world_rank_to_ongoing_poll",
        "self._latest_poll_status",
    },
    f"{EXECUTION}.controller:TrainController": {
        "self._worker_group",
        "self._health_check_interval_s",
    },
    f"{V2}.api.data_parallel_trainer:DataParallelTrainer": {
        "DatasetsCallback",
        "WorkingDirectorySetupCallback",
        "PlacementGroupCleanerCallback",
    },
}
"""Words of a class's source: attributes and callbacks that are used here by name."""


def ray_train_class(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        pytest.fail(f"Ray {ray.__version__} has no {name} in {module}; {WAY_OUT}")


@pytest.mark.parametrize("path", ARGUMENTS)
def test_ray_trains_classes_take_the_arguments_that_are_given(path: str) -> None:
    known = inspect.signature(ray_train_class(path)).parameters.keys()
    missing = ARGUMENTS[path] - known - NEW
    assert not missing, (
        f"{path} of Ray {ray.__version__} takes no {', '.join(sorted(missing))}; {WAY_OUT}"
    )


@pytest.mark.parametrize("path", SOURCES)
def test_ray_trains_classes_hold_what_is_used_by_name(path: str) -> None:
    source = inspect.getsource(ray_train_class(path))
    missing = sorted(word for word in SOURCES[path] if word not in source)
    assert not missing, f"{path} of Ray {ray.__version__} has no {', '.join(missing)}; {WAY_OUT}"


def test_a_worker_takes_the_context_that_the_controller_sends() -> None:
    worker = ray_train_class(f"{EXECUTION}.worker_group.worker:RayTrainWorker")
    named = {
        "train_run_context",
        "distributed_context",
        "synchronization_actor",
        "storage_context",
        "worker_callbacks",
        "controller_actor",
    }
    missing = named - inspect.signature(worker.init_train_context).parameters.keys()
    assert not missing, f"init_train_context takes no {', '.join(sorted(missing))}; {WAY_OUT}"


def test_every_name_that_the_engine_imports_is_there() -> None:
    try:
        importlib.import_module("accordion_workers.controller.ray_train_internals")
        importlib.import_module("accordion_workers.worker.ray_train_context")
    except ImportError as error:
        pytest.fail(f"{error}; {WAY_OUT}")
