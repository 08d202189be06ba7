"""The worker processes of one attempt, as workers of one Ray Train run.

The supervisor starts and owns the processes, as with plain actors; Ray Train's controller, in an actor of its own,
takes each of them into its run. They start at the same time. A controller that dies takes no worker with it: training
goes on, and the next controller takes the running workers over.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from workers.contract import EndRecord, Launch, PausedRecord
from workers.crew import RayCrew
from workers.errors import EngineUnavailable
from workers.member import Member
from workers.ray_train_controller import Ending, RayTrainController
from workers.ray_train_worker import WorkerInRayTrain

RAY_SERIES = "2.60"
"""Versions of Ray, without the last number, whose Ray Train the engine was made for."""
NEEDED = ("pandas", "pyarrow")
"""What Ray Train imports beyond Ray itself; `ray[train]` installs them."""
END_S = 3.0
"""How long Ray Train may take to note the end of its run."""
RETRY_S = 1.0
"""Pause before another controller, where the one before it failed too before a worker joined its run."""
JOIN_S = 120.0
"""How long a controller may take to let a worker join its run before it is replaced; a loaded machine takes 20 s."""
MOST_FAILED_CONTROLLERS = 5
"""Controllers in a row that may fail before one is up; then the attempt ends."""

log = logging.getLogger(__name__)


class RayTrainCrew(RayCrew):
    """Implements `Crew`; takes the same arguments as `RayCrew`.

    Raises:
        EngineUnavailable: the installed Ray is not the one that the engine was made for, or lacks Ray Train.
    """

    def __init__(self, launch: Launch, **named: Any) -> None:
        super().__init__(launch, **named)
        check_ray_train(self._ray.__version__)
        self._options |= {"max_concurrency": 8}
        self._controller: Any = None
        self._running: Any = None
        """Call that returns when the controller's run ends."""
        self._num_failed = 0
        self._next_controller_at = 0.0

    def look(self, timeout_s: float) -> None:
        """Start a controller where there is none, then do what `RayCrew` does."""
        if self._controller is None and self._members and self._clock() >= self._next_controller_at:
            self._start_controller()
        if any(one.joining and self._clock() - one.joining_since >= JOIN_S for one in self._members.values()):
            self._drop_controller(f"no worker could join its run within {JOIN_S:g} s")
        super().look(timeout_s)

    def close(self, outcome: EndRecord | PausedRecord | None = None) -> None:
        """Kill all actors, once Ray Train has noted how the run ended."""
        ending, message = _ending_of(outcome)
        if self._controller is not None:
            self._controller.conclude.remote(ending, message)
        super().close(outcome)
        if self._controller is not None:
            self._ray.wait([self._running], num_returns=1, timeout=END_S)
            self._ray.kill(self._controller)
            self._controller = None

    def _start_actor(self, options: dict[str, Any]) -> Any:
        return self._ray.remote(WorkerInRayTrain).options(**options).remote(self._launch, self._token)

    def _start_controller(self) -> None:
        here = {"label_selector": {"ray.io/node-id": self._ray.get_runtime_context().get_node_id()}}
        options = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 1000, **here}
        self._controller = self._ray.remote(RayTrainController).options(**options).remote(self._launch)
        self._running = self._controller.run.remote()
        for member in self._members.values():
            if member.place is not None:
                self._note_placed(member)

    def _note_placed(self, member: Member) -> None:
        member.has_joined = member.ready_since is not None
        if self._controller is not None:
            member.joining = self._controller.admit.remote(member.number, member.actor)
            member.joining_since = self._clock()

    def _open_calls(self) -> dict[Any, Callable[[Any], None]]:
        joining = {one.joining: partial(self._take_joining, one) for one in self._members.values() if one.joining}
        running = {} if self._running is None else {self._running: self._lose_controller}
        return {**super()._open_calls(), **joining, **running}

    def _take_joining(self, member: Member, call: Any) -> None:
        member.joining = None
        try:
            self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            # the process or the controller is gone; either is noticed by a call of its own.
            log.debug("worker process %d did not join the Ray Train run: %s", member.number, error)
            return
        member.has_joined = True
        self._num_failed = 0
        self._note_ready(member)

    def _lose_controller(self, run: Any) -> None:
        """Note why a controller's process or run ended."""
        try:
            self._ray.get(run)
            self._drop_controller("its run ended")
        except self._ray.exceptions.RayTaskError as raised:
            self._drop_controller(f"{type(raised.cause).__name__}: {raised.cause}")
        except self._ray.exceptions.RayError as lost:
            self._drop_controller(f"its process is gone ({type(lost).__name__})")

    def _drop_controller(self, reason: str) -> None:
        """Kill the controller; another one takes its place.

        Raises:
            EngineUnavailable: one controller after another fails.
        """
        log.warning("Ray Train's controller stopped: %s; another one takes the running workers over", reason)
        self._ray.kill(self._controller)
        self._controller = self._running = None
        for member in self._members.values():
            member.joining = None
        self._num_failed += 1
        if self._num_failed > 1:
            self._next_controller_at = self._clock() + RETRY_S
        if self._num_failed >= MOST_FAILED_CONTROLLERS:
            raise EngineUnavailable(
                f"Ray Train's controller failed {self._num_failed} times in a row: {reason}; set workers.engine to "
                "actors to run the job without Ray Train"
            )


def check_ray_train(version: str) -> None:
    """Check that this node has the Ray Train that the engine was made for.

    Raises:
        EngineUnavailable: Ray's version is another one, or something that `ray[train]` installs is missing.
    """
    way_out = "or set workers.engine to actors"
    if not version.startswith(f"{RAY_SERIES}."):
        raise EngineUnavailable(
            f"the ray-train engine needs Ray {RAY_SERIES}.*, and {version} is installed; "
            f"pip install 'ray[train]=={RAY_SERIES}.*', {way_out}"
        )
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineUnavailable(
            f"the ray-train engine needs {' and '.join(missing)}; pip install 'ray[train]=={RAY_SERIES}.*', {way_out}"
        )


def _ending_of(outcome: EndRecord | PausedRecord | None) -> tuple[Ending, str]:
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


__all__ = ["RAY_SERIES", "RayTrainCrew", "check_ray_train"]
