"""Private names of Ray Train 2.60, for a run whose workers come and go one by one; no other module imports them.

Ray Train's trainer, controller, worker group, worker and training function stay its own. What differs: the worker
group begins empty, takes in workers that the supervisor has started, and forgets those that are gone; ranks are those
of the present group; `ray.train.report` goes to the job's records.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata as distributions
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.callbacks.state_manager import StateManagerCallback
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.checkpoint.report_handler import ReportCallbackHandler
from ray.train.v2._internal.execution.context import DistributedContext, get_train_context
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
from ray.train.v2._internal.execution.train_fn_utils import DistributedTrainFnUtils, set_train_fn_utils
from ray.train.v2._internal.execution.worker_group import (
    ReplicaGroup,
    WorkerGroup,
    WorkerGroupPollStatus,
    WorkerGroupState,
)
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker
from ray.train.v2._internal.execution.worker_group.worker import Worker as RosterEntry
from ray.train.v2._internal.util import TrainingFramework
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import ControllerError

from workers.errors import CodeError
from workers.names import train_run_name

if TYPE_CHECKING:
    from workers.contract import Launch
    from workers.ray_train_controller import Ending
    from workers.ray_train_worker import WorkerInRayTrain
    from workers.worker import Seat

_UNUSED_CALLBACKS = {"DatasetsCallback", "WorkingDirectorySetupCallback", "PlacementGroupCleanerCallback"}
"""Callbacks of Ray Train that start actors or change directories for things that no worker here uses."""

log = logging.getLogger(__name__)


class _Backend(Backend):
    """Sets up no process group: workers join one group after another by themselves."""

    has_replica_groups = True
    share_cuda_visible_devices = False


class _BackendConfig(BackendConfig):
    """Stands in for `TorchConfig`, whose process group lives as long as the run's worker group."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _Backend

    @property
    def framework(self) -> TrainingFramework:
        return TrainingFramework.TORCH


class TrainSide:
    """A worker process's part in a Ray Train run: Ray Train's worker object and the context that scripts read."""

    def __init__(self, host: WorkerInRayTrain) -> None:
        self.worker = RayTrainWorker()
        self._host = host
        self._place: DistributedContext | None = None
        self._has_joined = False

    def join_run(self, arguments: Mapping[str, Any]) -> None:
        """Set up Ray Train's context; one that replaces another keeps the running training function and its rank."""
        before = get_train_context() if self._has_joined else None
        self.worker.init_train_context(**arguments)
        set_train_fn_utils(_TrainFunctions(self._host))
        context = get_train_context()
        if before is not None:
            runner = before.execution_context.training_thread_runner
            context.execution_context = replace(context.execution_context, training_thread_runner=runner)
        context.distributed_context = self._place or context.distributed_context
        self._has_joined = True

    def start_training_function(self, train_fn_ref: Any) -> None:
        """Start it, unless it runs."""
        if get_train_context().execution_context.training_thread_runner.is_running():
            return
        serve = self._host.serve_groups
        self.worker.run_train_fn(SimpleNamespace(get=lambda: serve))
        del train_fn_ref

    def show_place(self, seat: Seat) -> None:
        """Have `ray.train.get_context()` and the environment tell the worker's place in its present group."""
        here = seat.nodes[seat.rank]
        self._place = DistributedContext(
            world_rank=seat.rank,
            world_size=seat.world_size,
            local_rank=seat.nodes[: seat.rank].count(here),
            local_world_size=seat.nodes.count(here),
            node_rank=list(dict.fromkeys(seat.nodes)).index(here),
        )
        get_train_context().distributed_context = self._place
        os.environ |= {
            "RANK": str(self._place.world_rank),
            "WORLD_SIZE": str(self._place.world_size),
            "LOCAL_RANK": str(self._place.local_rank),
            "LOCAL_WORLD_SIZE": str(self._place.local_world_size),
            "NODE_RANK": str(self._place.node_rank),
        }
        if self._host.uses_gpu and "TORCH_NCCL_BLOCKING_WAIT" not in os.environ:
            # as Ray Train's TorchConfig does.
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")


class _TrainFunctions(DistributedTrainFnUtils):
    """Functions of `ray.train` in a job: no call waits at an actor, so a lost worker leaves no rank waiting there."""

    def __init__(self, host: WorkerInRayTrain) -> None:
        self._host = host

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None, *_: Any, **__: Any) -> None:
        """Add rank 0's metrics to the job's records; a checkpoint is not kept, and a warning says so."""
        self._host.report(metrics, has_checkpoint=checkpoint is not None)

    def get_checkpoint(self) -> None:
        """Return None: the job's own checkpoints restore what was given to `session.attach`."""

    def get_all_reported_checkpoints(self, *_: Any, **__: Any) -> list[Any]:
        """Return an empty list, as no reported checkpoint is kept."""
        return []

    def get_preemption_info(self) -> None:
        """Return None: the supervisor reacts to nodes that are drained."""

    def get_dataset_shard(self, dataset_info: Any) -> Any:
        """Refuse: which worker reads which sample changes with the worker group.

        Raises:
            CodeError: always.
        """
        raise CodeError(
            f"a job has no Ray Data shards, and {dataset_info.dataset_name!r} was asked for; read the data in the "
            "script or task, with session.batches(len(data))"
        )

    def barrier(self) -> None:
        """Wait for all workers of the group; a lost one breaks the collective instead of blocking it."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.barrier()

    def broadcast_from_rank_zero(self, data: Any) -> Any:
        """Return rank 0's data on every worker of the group."""
        import torch.distributed as dist

        received = [data]
        if dist.is_initialized():
            dist.broadcast_object_list(received, src=0)
        return received[0]


class _NoPlacementGroup:
    """Placement group handle of a worker group whose workers are placed one by one."""

    placement_group: Any = None

    def shutdown(self) -> None:
        """Do nothing."""


class _State(WorkerGroupState):
    """State of a worker group without placement group and synchronization actor; the supervisor ends the workers."""

    def shutdown(self) -> None:
        """Do nothing."""


class Roster(WorkerGroup):
    """Ray Train's worker group for workers that the supervisor starts and ends."""

    def _start_impl(self, worker_group_state_builder: Any) -> None:
        del worker_group_state_builder
        for callback in self._callbacks:
            callback.before_worker_group_start(self._worker_group_context)
        self._worker_group_state = _State(
            start_time=0.0, placement_group_handle=_NoPlacementGroup(), workers=[], sync_actor=None
        )
        self._replica_groups: list[ReplicaGroup] = []
        self._worker_rank_to_replica_group_rank: dict[int, int] = {}
        for callback in self._callbacks:
            if isinstance(callback, ReportCallbackHandler):
                callback.after_worker_group_start(self)

    def prepare_worker(self, actor: Any) -> RosterEntry:
        """Set up Ray Train's context in the worker's process; may take seconds, and changes no state."""
        metadata = ray.get(actor.get_metadata.remote())
        newcomer = RosterEntry(actor, metadata, self.get_resources_per_worker())
        newcomer.distributed_context = DistributedContext(
            world_rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0
        )
        self._init_train_context([newcomer], None)
        return newcomer

    def add_worker(self, newcomer: RosterEntry) -> None:
        """Take in a prepared worker, and start its training function."""
        self._set_workers([*self.get_workers(), newcomer])
        group = ReplicaGroup([newcomer], self.get_resources_per_worker(), self._replica_group_callbacks)
        self._replica_groups.append(group)
        group.start_training(self._worker_group_context)

    def poll_status(self, timeout: float | None = None) -> WorkerGroupPollStatus:
        """Poll the workers and forget those that are gone: the supervisor decides what a loss means."""
        found = list(zip(self.get_workers(), self._poll_workers_and_collect_errors(timeout), strict=True))
        kept = [(worker, status) for worker, status in found if not _is_gone(status.error)]
        workers = [worker for worker, _ in kept]
        if len(kept) < len(found):
            self._replica_groups = [one for one in self._replica_groups if one.get_workers()[0] in workers]
            self._set_workers(workers)
        for _, status in kept:
            # an error would make the controller restart the whole group.
            status.error, status.running = None, True
        polled = WorkerGroupPollStatus(
            dict(enumerate(status for _, status in kept)), self._worker_rank_to_replica_group_rank
        )
        # Ray Train's callbacks take an empty group for one that has not begun.
        for callback in self._callbacks if kept else ():
            callback.after_worker_group_poll_status(polled)
        self._latest_poll_status = polled
        return polled

    def execute_single(self, *_: Any, **__: Any) -> dict[str, str]:
        """Answer Ray Train's question for versions without a call to a worker that is busy loading torch."""
        return {name: distributions.version(name) for name in ("ray", "torch")}

    def __bool__(self) -> bool:
        """Return True for an empty group too: the controller asks whether there is one."""
        return True

    def _set_workers(self, workers: list[RosterEntry]) -> None:
        self._world_rank_to_ongoing_poll.clear()
        if workers:
            workers = self._assign_worker_ranks(workers)
        self._worker_rank_to_replica_group_rank = {rank: rank for rank in range(len(workers))}
        self._worker_group_state = replace(self._worker_group_state, workers=workers)
        for callback in self._callbacks:
            if isinstance(callback, ReportCallbackHandler) or (workers and isinstance(callback, StateManagerCallback)):
                callback.after_worker_group_start(self)


def _is_gone(error: BaseException | None) -> bool:
    return isinstance(error, WorkerHealthCheckFailedError) and isinstance(error.health_check_failure, RayActorError)


class _AsStarted(ScalingPolicy):
    """Begins with an empty worker group and changes nothing: the supervisor starts and ends workers."""

    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        return ResizeDecision(num_workers=0, resources_per_worker=self.scaling_config._resources_per_worker_not_none)

    def make_decision_for_running_worker_group(self, *_: Any, **__: Any) -> ScalingDecision:
        return NoopDecision()

    def _get_num_workers_for_resource_request(self) -> int:
        return 0

    def after_controller_start(self, train_run_context: Any) -> None: ...

    async def before_controller_shutdown(self) -> None: ...

    def before_controller_abort(self) -> None: ...


class Controller(TrainController):
    """Ray Train's controller over a `Roster`; it ends when the supervisor says how the attempt ended."""

    worker_group_cls = Roster
    _worker_group: Roster | None

    def __init__(self, **named: Any) -> None:
        self._ending: tuple[Ending, str] | None = None
        super().__init__(**named)

    async def admit(self, number: int, actor: Any) -> None:
        """Make a worker part of the run."""
        while (roster := self._worker_group) is None:
            await asyncio.sleep(0.01)
        roster.add_worker(await asyncio.to_thread(roster.prepare_worker, actor))
        log.debug("worker process %d is part of the run", number)

    def conclude(self, ending: Ending, message: str) -> None:
        """Have the run end in this state at its next turn."""
        self._ending = (ending, message)

    async def _poll_workers(self) -> WorkerGroupPollStatus:
        passed_s = 0.0
        while self._ending is None and passed_s < self._health_check_interval_s:
            await asyncio.sleep(0.1)
            passed_s += 0.1
        polled: WorkerGroupPollStatus = self.get_worker_group().poll_status(timeout=self._health_check_interval_s)
        return polled

    async def _step(self) -> Any:
        result = await super()._step()
        if self._ending is None or isinstance(self.get_state(), ShuttingDownState):
            return result
        ending, message = self._ending
        states = {
            "finished": FinishedState,
            "aborted": AbortedState,
            "errored": lambda: ErroredState(training_failed_error=ControllerError(RuntimeError(message))),
        }
        if ending == "aborted" and self._worker_group is not None:
            self._worker_group.abort()
            self._worker_group = None
        return replace(result, next_state=ShuttingDownState(next_state=states[ending]()))


class _Trainer(DataParallelTrainer):
    """Ray Train's trainer; `fit` makes the controller in this process and does not run it."""

    controller: Controller

    def _create_default_callbacks(self) -> list[Any]:
        return [one for one in super()._create_default_callbacks() if type(one).__name__ not in _UNUSED_CALLBACKS]

    def _initialize_and_run_controller(self, **named: Any) -> Any:
        named["scaling_policy"] = _AsStarted(self.scaling_config)
        self.controller = Controller(**named)
        return SimpleNamespace(error=None)


def create_controller(launch: Launch) -> Controller:
    """Return the controller of a new Ray Train run of this attempt; the process must be an actor's."""
    workers = launch.spec.workers
    resources = {"CPU": workers.cpus} | ({"GPU": workers.gpus} if workers.gpus else {})
    trainer = _Trainer(
        _train,
        backend_config=_BackendConfig(),
        scaling_config=ScalingConfig(
            num_workers=launch.workers, resources_per_worker=resources, use_gpu=bool(workers.gpus)
        ),
        run_config=RunConfig(
            name=train_run_name(launch.spec.name, launch.job_id, launch.attempt),
            storage_path=f"{launch.storage}/ray-train",
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    )
    trainer.fit()
    return trainer.controller


def _train() -> None:
    """Stand for the training function; each worker runs its own `serve_groups` in its place."""


__all__ = ["Controller", "Roster", "TrainSide", "create_controller"]
