"""The Ray Train run that this process works for; the only module with Ray Train's private names."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray

from accordion.session.training_warnings import TrainingWarning
from accordion_ray.errors import AttachError
from accordion_workers.controller.ray_releases import KNOWN, is_known


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestContext:
    """Ray Train run that a worker belongs to, and its rank in it."""

    name: str
    """`RunConfig(name=...)`, or what Ray Train chose."""
    rank: int
    world_size: int
    filesystem: Any
    """pyarrow's filesystem of the run's storage."""
    path: str
    """Directory of the run in that filesystem."""
    max_failures: int
    """Restarts that Ray's `FailureConfig` allows; -1, as there, for any number."""
    node: str = ""
    """Ray's id of the node that this worker runs on."""
    fit: str = ""
    """Ray Train's id of this call of `fit`, the same over its restarts."""
    has_node_notice: Callable[[], bool] = bool
    """Whether Ray Train has told this worker that a node of its run is about to leave."""
    attached: set[str] = field(default_factory=set)
    """Names in files of the sessions that this training function has attached."""


def current_run() -> GuestContext:
    """Return the run of the training function that calls this.

    Raises:
        AttachError: the caller is no Ray Train worker, or Ray has another version.
    """
    warn_of_other_ray(importlib.metadata.version("ray"))
    context = _train_context()
    check_not_in_job(context)
    storage = context.get_storage()
    return GuestContext(
        name=str(context.get_experiment_name()),
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        filesystem=storage.storage_filesystem,
        path=str(storage.experiment_fs_path),
        max_failures=context.train_run_context.run_config.failure_config.max_failures,
        node=ray.get_runtime_context().get_node_id(),
        fit=str(context.train_run_context.run_id),
        has_node_notice=partial(_has_node_notice, context),
        attached=vars(context).setdefault("accordion_sessions", set()),
    )


def _has_node_notice(context: Any) -> bool:
    # Earlier releases of Ray have no such context.
    notice = getattr(context, "preemption_context", None)
    return getattr(notice, "preemption_info", None) is not None


def warn_of_other_ray(version: str) -> None:
    """Warn if the installed Ray is none of the releases that were tried."""
    if not is_known(version):
        warnings.warn(
            f"Ray {version} is installed, and accordion_ray was tried with Ray {KNOWN}; training"
            " continues. Install one of these if something fails",
            TrainingWarning,
            stacklevel=4,
        )


def check_not_in_job(context: Any) -> None:
    """Check that the run is not an attempt of the service's own, which has no synchronization
    actor.

    Raises:
        AttachError: it is.
    """
    if context.get_synchronization_actor() is None:
        raise AttachError(
            "attach() was called in a job of the Accordion service, which compresses by itself; use"
            " the session of accordion_workers in the job's script"
        )


def follow_reports(
    before_report: Callable[[Mapping[str, Any]], None], after_report: Callable[[], None]
) -> None:
    """Call two functions around each `ray.train.report`, the first one with its metrics."""
    context = _train_context()
    report = context.report

    def followed(metrics: Mapping[str, Any], *arguments: Any, **named: Any) -> Any:
        before_report(metrics)
        answer = report(metrics, *arguments, **named)
        after_report()
        return answer

    context.report = followed


def read_training_error() -> BaseException | None:
    """Return what the training function raised; None if it returned or still runs."""
    error = _train_context().execution_context.training_thread_runner.get_error()
    raised: BaseException | None = getattr(error, "_base_exc", error)
    return raised


def _train_context() -> Any:
    try:
        from ray.train.v2._internal.execution.context import get_train_context
    except ImportError as error:
        raise AttachError(
            f"Ray {importlib.metadata.version('ray')} is installed without the Ray Train that "
            f'accordion_ray needs ({error}); install "ray[train]" {KNOWN}'
        ) from error
    try:
        return get_train_context()
    except RuntimeError as error:
        raise AttachError(
            "attach() was called outside of a Ray Train training function; call it in the function "
            "that TorchTrainer runs, or use accordion.attach in other scripts. Ray Train's version "
            "1 (RAY_TRAIN_V2_ENABLED=0) is not supported"
        ) from error
