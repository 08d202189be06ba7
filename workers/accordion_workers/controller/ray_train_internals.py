"""A Ray Train run whose workers come and go one by one; uses Ray Train's private API, of the
releases in `ray_releases.py`.

Ray Train's trainer, controller, worker group, callbacks and state API stay its own. What differs:
the worker group begins empty, lists workers that the supervisor has started, and drops dead ones.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import fields, replace
from functools import cached_property
from importlib import metadata as distributions
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ray import cloudpickle
from ray.exceptions import ActorDiedError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.backend import BackendConfig
from ray.train.v2._internal.callbacks.state_manager import StateManagerCallback
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.checkpoint.report_handler import ReportCallbackHandler
from ray.train.v2._internal.execution.context import DistributedContext
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.controller.state import (
    AbortedState,
    ErroredState,
    FinishedState,
    ShuttingDownState,
)
from ray.train.v2._internal.execution.scaling_policy import (
    NoopDecision,
    ResizeDecision,
    ScalingDecision,
    ScalingPolicy,
)
from ray.train.v2._internal.execution.worker_group import (
    WorkerGroup,
    WorkerGroupPollStatus,
    WorkerGroupState,
)
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus
from ray.train.v2._internal.execution.worker_group.worker import ActorMetadata
from ray.train.v2._internal.execution.worker_group.worker import Worker as WorkerRecord
from ray.train.v2._internal.util import TrainingFramework
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import ControllerError

if TYPE_CHECKING:
    from accordion_workers.common.train_run import TrainRun
    from accordion_workers.controller.ray_train_controller import RunState

_UNUSED_CALLBACKS = {
    "DatasetsCallback",
    "WorkingDirectorySetupCallback",
    "PlacementGroupCleanerCallback",
}
"""Callbacks of Ray Train that start actors or change directories for unused features."""
_REPLICA_GROUPS: tuple[dict[int, int], ...] = (
    ({},) if len(fields(WorkerGroupPollStatus)) > 1 else ()
)
"""Second argument of a poll's status: Ray 2.55 has none."""
POLL_WAIT_S = 0.1
"""Timeout of a poll in seconds; it blocks the controller, and workers may be loading torch."""

log = logging.getLogger(__name__)


class _BackendConfig(BackendConfig):
    """Stands in for `TorchConfig`: each worker group makes a process group of its own."""

    @property
    def framework(self) -> TrainingFramework:
        return TrainingFramework.TORCH


class _NoPlacementGroup:
    """Placement group handle of a worker group whose workers are placed one by one."""

    placement_group: Any = None

    def shutdown(self) -> None:
        """Do nothing."""


class _State(WorkerGroupState):
    """State of a worker group without placement group, synchronization actor and own workers."""

    def shutdown(self) -> None:
        """Do nothing."""


class ExternalWorkerGroup(WorkerGroup):
    """Ray Train's worker group for workers that the supervisor starts and ends."""

    def _start_impl(self, worker_group_state_builder: Any) -> None:
        del worker_group_state_builder
        for callback in self._callbacks:
            callback.before_worker_group_start(self._worker_group_context)
        self._worker_group_state = _State(
            start_time=0.0, placement_group_handle=_NoPlacementGroup(), workers=[], sync_actor=None
        )
        for callback in self._callbacks:
            if isinstance(callback, ReportCallbackHandler):
                callback.after_worker_group_start(self)

    async def add_worker(self, actor: Any) -> None:
        """Add a worker process to the run."""
        metadata = ActorMetadata(**await actor.get_metadata.remote())
        await actor.join_run.remote(self.packed_context)
        self._set_workers(
            [*self.get_workers(), WorkerRecord(actor, metadata, self.get_resources_per_worker())]
        )

    @cached_property
    def packed_context(self) -> bytes:
        """Pickled arguments of `RayTrainWorker.init_train_context`."""
        arguments = {
            "train_run_context": self._train_run_context,
            "distributed_context": DistributedContext(
                world_rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0
            ),
            "synchronization_actor": None,
            "storage_context": self._storage_context,
            "worker_callbacks": self._worker_callbacks_to_propagate,
            "controller_actor": None,
        }
        return bytes(cloudpickle.dumps(arguments))

    def poll_status(self, timeout: float | None = None) -> WorkerGroupPollStatus:
        """Poll the workers and drop those that are gone; the supervisor handles losses."""
        found = list(
            zip(self.get_workers(), self._poll_workers_and_collect_errors(timeout), strict=True)
        )
        kept = [worker for worker, status in found if not _is_gone(status)]
        if len(kept) < len(found):
            self._set_workers(kept)
        # An error in a status would make the controller end the whole run.
        statuses = {rank: WorkerStatus(running=True) for rank in range(len(kept))}
        polled = WorkerGroupPollStatus(statuses, *_REPLICA_GROUPS)
        # Ray Train's callbacks take an empty group for one that has not begun.
        for callback in self._callbacks if kept else ():
            callback.after_worker_group_poll_status(polled)
        self._latest_poll_status = polled
        return polled

    def execute_single(self, *_: Any, **__: Any) -> dict[str, str]:
        """Return the installed versions; a worker may still be importing torch."""
        return {name: distributions.version(name) for name in ("ray", "torch")}

    def __bool__(self) -> bool:
        """Return True for an empty group too: the controller tests whether it has a group."""
        return True

    def _set_workers(self, workers: list[WorkerRecord]) -> None:
        self._world_rank_to_ongoing_poll.clear()
        if workers:
            workers = self._assign_worker_ranks(workers)
        self._worker_group_state = replace(self._worker_group_state, workers=workers)
        for callback in self._callbacks:
            if isinstance(callback, (ReportCallbackHandler, StateManagerCallback)):
                callback.after_worker_group_start(self)


def _is_gone(status: WorkerStatus | None) -> bool:
    error = status.error if status is not None else None
    return isinstance(error, WorkerHealthCheckFailedError) and isinstance(
        error.health_check_failure, ActorDiedError
    )


class _ExternalScalingPolicy(ScalingPolicy):
    """Starts with an empty worker group and never resizes it; the supervisor does."""

    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        return ResizeDecision(
            num_workers=0, resources_per_worker=self.scaling_config._resources_per_worker_not_none
        )

    def make_decision_for_running_worker_group(self, *_: Any, **__: Any) -> ScalingDecision:
        return NoopDecision()

    def _get_num_workers_for_resource_request(self) -> int:
        return 0

    def after_controller_start(self, train_run_context: Any) -> None: ...

    async def before_controller_shutdown(self) -> None: ...

    def before_controller_abort(self) -> None: ...


class ExternalWorkersController(TrainController):
    """Ray Train's controller over an `ExternalWorkerGroup`; it runs until `end_run`."""

    worker_group_cls = ExternalWorkerGroup
    _worker_group: ExternalWorkerGroup | None

    def __init__(self, **named: Any) -> None:
        self._ending: tuple[RunState, str] | None = None
        super().__init__(**named)

    async def add_worker(self, number: int, actor: Any) -> bytes:
        """Make a worker part of the run; return the context that it got."""
        while (group := self._worker_group) is None:
            await asyncio.sleep(0.01)
        await group.add_worker(actor)
        log.debug("worker process %d is part of the run", number)
        return group.packed_context

    async def run(self) -> None:
        """Run until `end_run`.

        Raises:
            TrainingFailedError: the run ended by an error of Ray Train's own.
        """
        await super().run()
        error = self.get_training_failed_error()
        if error is not None and self._ending is None:
            raise error

    def end_run(self, ending: RunState, message: str) -> None:
        """End the run in this state at its next iteration."""
        self._ending = (ending, message)

    async def _poll_workers(self) -> WorkerGroupPollStatus:
        passed_s = 0.0
        while self._ending is None and passed_s < self._health_check_interval_s:
            await asyncio.sleep(0.1)
            passed_s += 0.1
        polled: WorkerGroupPollStatus = self.get_worker_group().poll_status(timeout=POLL_WAIT_S)
        return polled

    async def _step(self) -> Any:
        result = await super()._step()
        if self._ending is None or isinstance(self.get_state(), ShuttingDownState):
            return result
        ending, message = self._ending
        states = {
            "finished": FinishedState,
            "aborted": AbortedState,
            "errored": lambda: ErroredState(
                training_failed_error=ControllerError(RuntimeError(message))
            ),
        }
        if ending == "aborted" and self._worker_group is not None:
            self._worker_group.abort()
            self._worker_group = None
        return replace(result, next_state=ShuttingDownState(next_state=states[ending]()))


class _Trainer(DataParallelTrainer):
    """Ray Train's trainer; `fit` makes the controller in this process and does not run it."""

    controller: ExternalWorkersController

    def _create_default_callbacks(self) -> list[Any]:
        return [
            one
            for one in super()._create_default_callbacks()
            if type(one).__name__ not in _UNUSED_CALLBACKS
        ]

    def _initialize_and_run_controller(self, **named: Any) -> Any:
        named["scaling_policy"] = _ExternalScalingPolicy(self.scaling_config)
        self.controller = ExternalWorkersController(**named)
        return SimpleNamespace(error=None)


def create_controller(run: TrainRun) -> ExternalWorkersController:
    """Return the controller of a new Ray Train run; must be called in an actor."""
    resources = {"CPU": run.cpus} | ({"GPU": run.gpus} if run.gpus else {})
    trainer = _Trainer(
        _train_group,
        backend_config=_BackendConfig(),
        scaling_config=ScalingConfig(
            num_workers=run.num_workers, resources_per_worker=resources, use_gpu=bool(run.gpus)
        ),
        run_config=RunConfig(
            name=run.name,
            storage_path=f"{run.storage}/ray-train",
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    )
    trainer.fit()
    return trainer.controller


def _train_group() -> None:
    """Placeholder for the training function: workers train in calls of the supervisor."""


__all__ = ["POLL_WAIT_S", "ExternalWorkerGroup", "ExternalWorkersController", "create_controller"]
