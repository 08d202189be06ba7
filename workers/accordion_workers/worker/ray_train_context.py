"""What `ray.train` does in the user code of a worker; uses Ray Train's private API.

User code sees the rank of its present group, and `ray.train.report` adds to the job's records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ray import cloudpickle
from ray.train.v2._internal.execution.context import DistributedContext, get_train_context
from ray.train.v2._internal.execution.train_fn_utils import (
    DistributedTrainFnUtils,
    set_train_fn_utils,
)
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker

from accordion_workers.common.errors import CodeError

if TYPE_CHECKING:
    from accordion_workers.worker.torchrun_env import LocalRanks


class ScriptContext:
    """Provides `ray.train` to user code; `report` receives the metrics."""

    def __init__(self, run_context: bytes, report: Callable[..., None]) -> None:
        RayTrainWorker().init_train_context(**cloudpickle.loads(run_context))
        set_train_fn_utils(TrainFunctions(report))

    def show_ranks(self, rank: int, world_size: int, ranks: LocalRanks) -> None:
        """Set the ranks that `ray.train.get_context()` returns to those in the present group."""
        get_train_context().distributed_context = DistributedContext(
            world_rank=rank, world_size=world_size, **asdict(ranks)
        )


class TrainFunctions(DistributedTrainFnUtils):
    """Functions of `ray.train` in a job; none waits at an actor, where a lost worker would block
    all.
    """

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report

    def report(
        self, metrics: Mapping[str, Any], checkpoint: Any = None, *_: Any, **__: Any
    ) -> None:
        """Add metrics to the job's records; a checkpoint is not kept, and a warning says so."""
        self._report(metrics, has_checkpoint=checkpoint is not None)

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
            f"a job has no Ray Data shards, and {dataset_info.dataset_name!r} was asked for; read"
            " the data in the script or task, with session.batches(len(data))"
        )

    def barrier(self) -> None:
        """Wait for all workers of the group; a lost one breaks the collective."""
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


__all__ = ["ScriptContext", "TrainFunctions"]
