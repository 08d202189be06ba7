"""Interface between an attempt and its worker processes; `ENGINES` lists the implementations."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, cast

from accordion_workers.controller.ray_releases import explain_fallback, is_known
from accordion_workers.controller.scaling_policy import Process
from accordion_workers.controller.start_failures import FailedStart
from accordion_workers.records.contract import EndRecord, Launch, PausedRecord, ResizeRecord
from accordion_workers.training.context import PreviousGroup, RankProgress

ENGINES = {
    "ray-train": "accordion_workers.controller.ray_train_pool:RayTrainPool",
    "actors": "accordion_workers.controller.actor_pool:ActorPool",
}
"""Implementation of each value of `workers.engine`; a module is imported at first use."""


def choose_engine(launch: Launch, ray: str | None = None) -> tuple[Launch, str]:
    """Return the attempt with the engine that it can run on, and why that is not the one of its
    job; empty if it is.

    Args:
        launch: the attempt.
        ray: release of Ray; None for the one that is installed.
    """
    release = ray or importlib.metadata.version("ray")
    workers = launch.spec.workers
    if workers.engine == "actors" or is_known(release):
        return launch, ""
    spec = launch.spec.model_copy(
        update={"workers": workers.model_copy(update={"engine": "actors"})}
    )
    return launch.model_copy(update={"spec": spec}), explain_fallback(release)


def create_worker_pool(launch: Launch) -> WorkerPool:
    """Return the worker pool of an attempt, on the engine that its job names."""
    # Calls to a process that ends are dropped, and its end is told by itself; Ray would print them.
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"
    module, _, name = ENGINES[launch.spec.workers.engine].partition(":")
    make = cast("Callable[[Launch], WorkerPool]", getattr(importlib.import_module(module), name))
    return make(launch)


class WorkerPool(Protocol):
    """Worker processes of one attempt; used by one thread."""

    @property
    def processes(self) -> list[Process]:
        """Return the live processes, by number."""

    def start(self, avoid: Collection[str] = ()) -> None:
        """Request one more process; it starts once a node has room that is not to be avoided."""

    def has_other_node(self, nodes: Collection[str]) -> bool:
        """Return whether a process fits on a node besides these, once that node has room."""

    def stop(self, number: int) -> None:
        """Kill a process; do nothing if it is gone."""

    def kill(self, number: int) -> None:
        """Kill a member of the group by any means; it counts as returned, not as the cause of a
        failure.
        """

    def poll(self, timeout_s: float) -> None:
        """Process pending events, or wait up to `timeout_s` for one."""

    def take_failed_starts(self) -> list[FailedStart]:
        """Return and clear the processes that ended before they were ready."""

    def start_group(
        self, group: Sequence[int], generation: int, previous_group: PreviousGroup | None
    ) -> None:
        """Start a group of these processes, in rank order.

        Raises:
            ProcessLost: rank 0's process does not answer.
        """

    def results(self) -> dict[int, str | BaseException]:
        """Return the results so far by rank: the loop's outcome, or the error that ended the
        member.
        """

    def resize(self, note: ResizeRecord) -> None:
        """Have the group save and return at its next step boundary; rank 0 records the note."""

    def leave_group(self) -> None:
        """Have the members of a group that lost one return at their next step."""

    def last_step(self) -> tuple[int, float] | None:
        """Return the newest known step of the newest group, and its time; None if there is none."""

    def progress(self) -> dict[int, RankProgress]:
        """Return the last known progress by rank of the newest group; `last_step` refreshes it."""

    def idle_s(self) -> float:
        """Return for how many seconds no rank of the newest group has made progress."""

    def find_user_lines(self) -> dict[int, str]:
        """Return the line of user code that each responding rank of the newest group executes."""

    def close(self, outcome: EndRecord | PausedRecord | None = None) -> None:
        """Kill all processes; `outcome` is how the attempt ended, None if it failed
        unexpectedly.
        """
