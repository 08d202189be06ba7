"""The worker process as a worker of a Ray Train run; imports Ray Train only for user code that uses
it.

Ray Train's controller asks for its location, sends the run's context and polls it, all in plain
values. Neither the supervisor, which starts the actor, nor a worker of a built-in task imports Ray
Train: that takes 0.8 s of CPU and 50 MB in each process.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from accordion_workers.common.train_run import TRAIN_SETTINGS
from accordion_workers.tasks import SCRIPT
from accordion_workers.worker.process import GroupAssignment, Worker
from accordion_workers.worker.torchrun_env import LocalRanks

if TYPE_CHECKING:
    from accordion_workers.worker.ray_train_context import ScriptContext

MAX_METRICS = 100
"""Number of metrics that `ray.train.report` adds to the record of an epoch."""

log = logging.getLogger(__name__)


class WorkerInRayTrain(Worker):
    """A worker of a Ray Train run, which takes part in one worker group after another."""

    def __init__(self, launch: str, token: str = "") -> None:
        os.environ |= TRAIN_SETTINGS
        super().__init__(launch, token)
        self._run_context: bytes | None = None
        """Context of the newest run that this process joined, as Ray Train's controller sent it."""
        self._context: ScriptContext | None = None
        """Context of user code; None if it does not use Ray Train."""
        self._is_prepared = False
        self._joining = threading.Lock()
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        """Return what Ray shows beside the actor's class."""
        return f"job {self._launch.job_id} attempt {self._launch.attempt}"

    def prepare(self) -> bool:
        """Load everything slow in advance, and Ray Train for code that uses it.

        Returns whether there is such code: only that must know the run before it trains.

        Raises:
            TaskRaised: the task or its data cannot be loaded here.
            StorageError: this process does not see the job's directory.
        """
        super().prepare()
        with self._joining:
            self._is_prepared = True
            try:
                self._show_run()
            except ImportError as error:
                # A script that needs it raises an error of its own.
                log.warning(
                    "ray.train is not available to scripts on this node: %s; pip install"
                    " 'ray[train]' there",
                    error,
                )
                return False
            return self._uses_ray_train()

    def train(self, assignment: GroupAssignment) -> str:
        """Train in this group until it ends; return the loop's outcome.

        Raises:
            WorkerError: as `loop.train`.
            RuntimeError: a collective broke, since some peer is gone.
        """
        if self._context is not None:
            self._context.show_ranks(
                assignment.rank, assignment.world_size, LocalRanks.of_assignment(assignment)
            )
        return super().train(assignment)

    def get_metadata(self) -> dict[str, Any]:
        """Return node, process id and accelerators, named as in Ray Train's `ActorMetadata`."""
        import ray

        location, accelerators = self.locate(), ray.get_runtime_context().get_accelerator_ids()
        host = socket.gethostname()
        found = {
            "hostname": host,
            "node_id": location.node,
            "node_ip": location.host,
            "pid": location.pid,
        }
        return {**found, "accelerator_ids": accelerators}

    def join_run(self, run_context: bytes) -> None:
        """Become part of the run of a Ray Train controller, or of another one that replaces it."""
        with self._joining:
            self._run_context = run_context
            self._show_run()

    def poll_status(self) -> None:
        """Answer Ray Train's poll. The supervisor tracks the worker's progress and its exit."""

    def report(self, metrics: Mapping[str, Any], *, has_checkpoint: bool) -> None:
        """Add what user code gave to `ray.train.report` to the job's records; rank 0's count."""
        kept = keep_finite_numbers(metrics)
        if surplus := self._control.report_metrics(kept, most=MAX_METRICS):
            self._warn_once(
                f"ray.train.report: an epoch's record holds {MAX_METRICS} metrics; more are left"
                f" out, such as {surplus[0]}"
            )
        if left_out := sorted({str(name) for name in metrics} - kept.keys()):
            self._warn_once(
                f"ray.train.report: only finite numbers are kept; left out: {', '.join(left_out)}"
            )
        if has_checkpoint:
            self._warn_once(
                "ray.train.report: the checkpoint is not kept, since the job saves its own state;"
                " pass what must be saved to session.attach(model, optimizer, ...)"
            )

    def _show_run(self) -> None:
        """Set up Ray Train's context for user code, once that is loaded and the run is known."""
        if (
            not (self._is_prepared and self._uses_ray_train())
            or self._run_context is None
            or self._context is not None
        ):
            # Another controller's run has the same name and storage: the context stays.
            return
        from accordion_workers.worker.ray_train_context import ScriptContext

        self._context = ScriptContext(self._run_context, self.report)

    def _uses_ray_train(self) -> bool:
        return self._launch.spec.task.name == SCRIPT or "ray.train" in sys.modules

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)


def keep_finite_numbers(metrics: Mapping[Any, Any]) -> dict[str, float]:
    """Return the metrics that are finite numbers, or scalars of an array library."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        with suppress(TypeError, ValueError, RuntimeError, OverflowError):
            if not isinstance(value, str) and math.isfinite(value):
                numbers[str(name)] = float(value)
    return numbers


__all__ = [
    "MAX_METRICS",
    "WorkerInRayTrain",
    "keep_finite_numbers",
]
