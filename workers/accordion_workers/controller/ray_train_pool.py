"""The worker processes of one attempt, as workers of one Ray Train run.

The supervisor starts and owns the processes, as with plain actors; Ray Train's controller, in an
actor of its own, adds each of them to its run. It starts once a process is prepared, for scripts at
once. A controller that dies takes no worker with it: training continues, and the next controller
lists the running workers.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from accordion_workers.common.errors import EngineUnavailable
from accordion_workers.common.names import train_run_name
from accordion_workers.common.train_run import TrainRun
from accordion_workers.controller.actor_pool import ActorPool
from accordion_workers.controller.hang_detection import HEARTBEAT_S
from accordion_workers.controller.member import Member
from accordion_workers.controller.ray_train_controller import RayTrainController, RunState
from accordion_workers.records.contract import EndRecord, Launch, PausedRecord
from accordion_workers.tasks import SCRIPT
from accordion_workers.worker.ray_train_worker import WorkerInRayTrain

REQUIRED_MODULES = ("pandas", "pyarrow")
"""Modules that Ray Train imports beyond Ray itself; `ray[train]` installs them."""
END_S = 10.0
"""Timeout for Ray Train to record the end of its run."""
BUILD_S = 120.0
"""Time in which a controller must be up, or it is replaced; a loaded machine takes 20 s."""
JOIN_S = 10.0
"""How long a prepared, responsive process waits for a controller that is up to add it, where the
newest run's context can take its place."""
FIRST_JOIN_S = 120.0
"""Limit of `JOIN_S` before any process has joined a run; a loaded machine takes 20 s."""
STEADY_S = 60.0
"""Age from which a controller's end is not counted together with the ends of those before it."""
RETRY_S = 1.0
"""Delay before a process asks again to join, and before the third controller in a row."""
MAX_RETRY_S = 60.0
"""Longest pause between controllers; it doubles with each one that fails."""
MAX_FAILED_CONTROLLERS = 5
"""Controllers in a row that may fail before any process has joined a run; then the attempt ends."""
MAX_FAILED_JOINS = 3
"""Refusals after which a process trains without being listed in the run."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Join:
    """Progress of a process in joining the run."""

    call: Any = None
    """Open call by which it joins; None if there is none."""
    asked_at: float = -MAX_RETRY_S
    prepared_at: float | None = None
    num_refused: int = 0
    is_listed: bool = False
    """Whether the present controller lists it."""


class RayTrainPool(ActorPool):
    """Implements `WorkerPool`; takes the same arguments as `ActorPool`.

    Ray Train only shows and describes the run: once a process has joined one, nothing that happens
    to a controller stops training, and processes that start while there is none join the newest run
    by its context.

    Raises:
        EngineUnavailable: Ray is installed without what Ray Train needs.
    """

    def __init__(self, launch: Launch, **named: Any) -> None:
        super().__init__(launch, **named)
        check_ray_train()
        self._options |= {"max_concurrency": 8}
        self._is_script = launch.spec.task.name == SCRIPT
        self._train_run = TrainRun(
            name=train_run_name(launch.spec.name, launch.job_id, launch.attempt),
            storage=launch.storage,
            num_workers=launch.workers,
            cpus=launch.spec.workers.cpus,
            gpus=launch.spec.workers.gpus,
        )
        self._controller: Any = None
        self._controller_since = 0.0
        self._building: Any = None
        """Call that returns when the controller is up."""
        self._is_up = False
        self._running: Any = None
        """Call that returns when the controller's run ends."""
        self._run_context: bytes | None = None
        """Context of the newest run that a process has joined; None before the first."""
        self._joins: dict[int, _Join] = {}
        self._num_failed = 0
        self._next_controller_at = 0.0

    def poll(self, timeout_s: float) -> None:
        """Manage the controller and the processes that have not joined, then do what `ActorPool`
        does.

        Raises:
            EngineUnavailable: no controller comes up, and no process has ever joined a run.
        """
        self._manage_controller()
        self._joins = {number: self._joins.get(number) or _Join() for number in self._members}
        for member in list(self._members.values()):
            if member.location is not None:
                self._manage_join(member, self._joins[member.number])
        super().poll(timeout_s)

    def close(self, outcome: EndRecord | PausedRecord | None = None) -> None:
        """Kill all actors, once Ray Train has noted how the run ended."""
        ending, message = _choose_run_state(outcome)
        if self._is_up:
            self._controller.end_run.remote(ending, message)
        super().close(outcome)
        if self._is_up:
            self._ray.wait([self._running], num_returns=1, timeout=END_S)
        if self._controller is not None:
            self._ray.kill(self._controller)
            self._controller = None

    def _start_actor(self, options: dict[str, Any]) -> Any:
        return (
            self._ray.remote(WorkerInRayTrain).options(**options).remote(self._launch, self._token)
        )

    def _note_placed(self, member: Member) -> None:
        member.has_joined = False
        join = self._joins.setdefault(member.number, _Join())
        self._manage_join(member, join)

    def _open_calls(self) -> dict[Any, Callable[[Any], None]]:
        joins = {
            self._joins[one.number].call: partial(self._handle_join, one)
            for one in self._members.values()
            if one.number in self._joins and self._joins[one.number].call is not None
        }
        building = {} if self._building is None else {self._building: self._handle_built}
        running = {} if self._running is None else {self._running: self._handle_run_end}
        return {**super()._open_calls(), **joins, **building, **running}

    def _manage_controller(self) -> None:
        """Start a controller where there is none; replace one that does not come up."""
        age_s = self._clock() - self._controller_since
        if self._controller is None:
            # Its imports would take CPU time from processes that load torch; only a script needs it
            # by then.
            is_needed = self._is_script or any(
                one.starting is None for one in self._members.values()
            )
            if self._members and is_needed and self._clock() >= self._next_controller_at:
                self._start_controller()
        elif not self._is_up:
            if age_s >= BUILD_S:
                self._drop_controller(f"it was not up within {BUILD_S:g} s")
        elif age_s >= STEADY_S:
            self._num_failed = 0

    def _start_controller(self) -> None:
        here = {"label_selector": {"ray.io/node-id": self._ray.get_runtime_context().get_node_id()}}
        options = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 1000, **here}
        self._controller = (
            self._ray.remote(RayTrainController).options(**options).remote(self._train_run)
        )
        self._running = self._controller.run.remote()
        self._building = self._controller.wait_until_up.remote()
        self._controller_since = self._clock()

    def _manage_join(self, member: Member, join: _Join) -> None:
        """Ask the controller to add the process, again if that failed; replace one that
        does not.
        """
        now = self._clock()
        if member.starting is None and join.prepared_at is None:
            join.prepared_at = now
        if join.call is None and not join.is_listed and now - join.asked_at >= RETRY_S:
            join.call = self._request_join(member, join)
            join.asked_at = now if join.call is not None else join.asked_at
        waits = join.call is not None and not member.has_joined and self._is_up
        if not waits or join.prepared_at is None or member.silent_s > 2 * HEARTBEAT_S:
            return
        limit_s = JOIN_S if self._run_context is not None else FIRST_JOIN_S
        if now - max(join.asked_at, join.prepared_at) >= limit_s:
            self._drop_controller(f"it did not add a worker process within {limit_s:g} s")

    def _request_join(self, member: Member, join: _Join) -> Any:
        if self._is_up and join.num_refused < MAX_FAILED_JOINS:
            return self._controller.add_worker.remote(member.number, member.actor)
        if self._run_context is not None and not member.has_joined:
            return member.actor.join_run.remote(self._run_context)
        return None

    def _handle_join(self, member: Member, call: Any) -> None:
        """Record that the process has joined; `_manage_join` repeats a call that was lost."""
        join = self._joins[member.number]
        join.call = None
        try:
            context = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as raised:
            self._handle_refusal(member, join, raised.cause)
            return
        except self._ray.exceptions.RayError as lost:
            log.debug("worker process %d has not joined the Ray Train run: %s", member.number, lost)
            return
        if context is not None:
            self._run_context, join.is_listed = context, True
        member.has_joined = True
        self._note_ready(member)

    def _handle_refusal(self, member: Member, join: _Join, cause: BaseException) -> None:
        join.num_refused += 1
        log.warning(
            "worker process %d could not join the Ray Train run: %s: %s",
            member.number,
            _type_name(cause),
            cause,
        )
        if join.num_refused >= MAX_FAILED_JOINS:
            log.warning(
                "worker process %d trains without being listed in the Ray Train run", member.number
            )
            join.is_listed = member.has_joined = True
            self._note_ready(member)

    def _handle_built(self, call: Any) -> None:
        self._building = None
        # If the controller is gone, the end of its run has the reason.
        with suppress(self._ray.exceptions.RayError):
            self._ray.get(call)
            self._is_up = True

    def _handle_run_end(self, run: Any) -> None:
        """Note why a controller's process or run ended."""
        try:
            self._ray.get(run)
            self._drop_controller("its run ended")
        except self._ray.exceptions.RayTaskError as raised:
            is_fatal = not isinstance(raised.cause, OSError)
            self._drop_controller(
                f"{_type_name(raised.cause)}: {raised.cause or raised}", is_fatal=is_fatal
            )
        except self._ray.exceptions.RayError as lost:
            self._drop_controller(f"its process is gone ({_type_name(lost)})")

    def _drop_controller(self, reason: str, *, is_fatal: bool = True) -> None:
        """Kill the controller; another one takes its place after a pause that grows.

        Raises:
            EngineUnavailable: one controller after another fails, for a reason that `is_fatal`,
                no process has joined a run, and none can train without.
        """
        self._ray.kill(self._controller)
        self._controller = self._running = self._building = None
        self._is_up = False
        for number, join in self._joins.items():
            self._joins[number] = _Join(prepared_at=join.prepared_at)
        self._num_failed += 1
        pause_s = (
            min(MAX_RETRY_S, RETRY_S * 2.0 ** (self._num_failed - 2))
            if self._num_failed > 1
            else 0.0
        )
        self._next_controller_at = self._clock() + pause_s
        is_needed = self._run_context is None and not any(
            one.ready_since for one in self._members.values()
        )
        if is_fatal and is_needed and self._num_failed >= MAX_FAILED_CONTROLLERS:
            raise EngineUnavailable(
                f"Ray Train's controller failed {self._num_failed} times in a row: {reason}; set"
                " workers.engine to actors to run the job without Ray Train"
            )
        log.warning(
            "Ray Train's controller stopped: %s; training continues, another one starts", reason
        )


def check_ray_train() -> None:
    """Check that this node has all of Ray Train.

    Raises:
        EngineUnavailable: a part of `ray[train]` is missing.
    """
    missing = [name for name in REQUIRED_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineUnavailable(
            f"the ray-train engine needs {' and '.join(missing)}; pip install 'ray[train]', or set"
            " workers.engine to actors"
        )


def _type_name(error: BaseException) -> str:
    return type(error).__name__


def _choose_run_state(outcome: EndRecord | PausedRecord | None) -> tuple[RunState, str]:
    """Return the state of the run that Ray Train shows, and why."""
    match outcome:
        case EndRecord(status="SUCCEEDED"):
            return "finished", ""
        case EndRecord(status="FAILED", message=message):
            return "errored", message
        case EndRecord():
            return "aborted", "the job was cancelled"
        case PausedRecord():
            return "aborted", "the job was paused"
        case None:
            return "errored", "the supervisor failed; its log says why"


__all__ = ["RayTrainPool", "check_ray_train"]
