"""The worker process as a worker of a Ray Train run; imports nothing of Ray Train until it joins one.

Ray Train's controller calls it by the methods of its own `RayTrainWorker`, which are carried out by an instance of
that class in this process. Whoever starts the actor needs no import of Ray Train either.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from workers.worker import Seat, Worker

if TYPE_CHECKING:
    from workers.ray_train_internals import TrainSide

_T = TypeVar("_T")

SETTINGS = {
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
"""Ray Train's own copies of printed lines are switched off, since the job's log has them; so is its reaction to
drained nodes, since the supervisor has its own."""


log = logging.getLogger(__name__)


class WorkerInRayTrain(Worker):
    """A worker that trains inside Ray Train's training function, in one worker group after another."""

    def __init__(self, launch: str, token: str = "") -> None:
        for name, text in SETTINGS.items():
            os.environ.setdefault(name, text)
        super().__init__(launch, token)
        self._seats: queue.SimpleQueue[tuple[Seat, Future[str]] | None] = queue.SimpleQueue()
        self._side: TrainSide | None = None
        self._joining = threading.Lock()
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        """Return what Ray shows beside the actor's class."""
        return f"job {self._launch.job_id} attempt {self._launch.attempt}"

    @property
    def uses_gpu(self) -> bool:
        """Whether the job reserves a GPU for each worker."""
        return self._launch.spec.workers.gpus > 0

    def train(self, seat: Seat) -> str:
        """Have Ray Train's training function take part in this group; return the loop's outcome.

        Raises:
            WorkerError: as `loop.train`.
            RuntimeError: a collective broke, since some peer is gone.
        """
        answer: Future[str] = Future()
        self._seats.put((seat, answer))
        return answer.result()

    def serve_groups(self) -> None:
        """Train in one group after another until `shutdown`; Ray Train's training function runs this."""
        while (order := self._seats.get()) is not None:
            seat, answer = order
            self._train_side().show_place(seat)
            try:
                outcome = super().train(seat)
            except BaseException as error:  # noqa: BLE001  # the caller of `train` gets it
                answer.set_exception(error)
            else:
                answer.set_result(outcome)

    def report(self, metrics: Mapping[str, Any], *, has_checkpoint: bool) -> None:
        """Add what a script gave to `ray.train.report` to the job's records; rank 0's count."""
        kept = finite_numbers(metrics)
        self._helm.report_metrics(kept)
        if left_out := sorted(metrics.keys() - kept.keys()):
            self._warn_once(f"ray.train.report: only finite numbers are kept; left out: {', '.join(left_out)}")
        if has_checkpoint:
            self._warn_once(
                "ray.train.report: the checkpoint is not kept, since the job saves its own state; pass what must be "
                "saved to session.attach(model, optimizer, ...)"
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    def init_train_context(self, **context: Any) -> None:
        """Join the run of a Ray Train controller, or the run of another one that replaces it."""
        self._train_side().join_run(context)

    def run_train_fn(self, train_fn_ref: Any) -> None:
        """Start Ray Train's training function, unless it runs for an earlier controller already."""
        self._train_side().start_training_function(train_fn_ref)

    def execute(self, fn: Callable[..., _T], *args: Any, **named: Any) -> _T:
        """Run a function that Ray Train sends, such as its set-up of accelerators."""
        return fn(*args, **named)

    def get_metadata(self) -> Any:
        """Return node, process id and accelerators in Ray Train's form."""
        return self._train_side().worker.get_metadata()

    def poll_status(self) -> Any:
        """Return whether the training function still runs."""
        return self._train_side().worker.poll_status()

    def clear_result_queue(self) -> bool:
        """Drop results that Ray Train has not collected."""
        return bool(self._train_side().worker.clear_result_queue())

    def shutdown(self) -> None:
        """End the training function once its present group has ended."""
        self._seats.put(None)
        if self._side is not None:
            self._side.worker.shutdown()

    def _train_side(self) -> TrainSide:
        """Return this process's part in the Ray Train run; the first call imports Ray Train."""
        with self._joining:
            if self._side is None:
                from workers.ray_train_internals import TrainSide

                self._side = TrainSide(self)
            return self._side


def finite_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are finite numbers, or scalars of an array library."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        with suppress(TypeError, ValueError, RuntimeError):
            if not isinstance(value, str) and math.isfinite(value):
                numbers[name] = float(value)
    return numbers


__all__ = ["SETTINGS", "WorkerInRayTrain", "finite_numbers"]
