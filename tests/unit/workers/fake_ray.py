"""Ray without processes: worker actors answer what the test says, and time passes where nothing
comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError

from accordion_workers.controller.ray_train_controller import RayTrainController
from accordion_workers.worker.process import Heartbeat, ProcessLocation, Worker

DEAD = ActorDiedError()
OPEN = object()
"""The answer of a call that has not come back."""
HERE, THERE = "a" * 56, "b" * 56
"""Node ids, of the length that Ray's have."""
ITSELF = "the pool's own process"


@dataclass(eq=False)
class Call:
    method: str
    arguments: tuple[Any, ...]
    answer: Any


class Actor:
    """One worker process: `answers` by method, an exception is raised, `OPEN` for none; at first
    all but `train`'s.
    """

    def __init__(self, number: int) -> None:
        place = ProcessLocation(node=HERE, host="127.0.0.1", pid=number)
        heartbeat = Heartbeat(step=0, stepped_at=0.0, compute_s=0.0)
        self.answers: dict[str, Any] = {
            "locate": place,
            "open_store": ("127.0.0.1", 1),
            "fetch_data": None,
            "install_packages": None,
            "prepare": None,
            "train": OPEN,
        }
        self.answers |= {
            "heartbeat": heartbeat,
            "last_step": heartbeat,
            "resize": None,
            "leave_group": None,
            "join_run": None,
        }
        self.calls: list[Call] = []

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=partial(self.call, method))

    def call(self, method: str, *arguments: Any) -> Call:
        self.calls.append(Call(method, arguments, self.answers[method]))
        return self.calls[-1]

    def answer(self, method: str, answer: Any) -> None:
        """What is asked from now on, and what was and is open, comes back with this."""
        self.answers[method] = answer
        for call in self.asked(method):
            call.answer = answer if call.answer is OPEN else call.answer

    def asked(self, method: str) -> list[Call]:
        return [call for call in self.calls if call.method == method]

    def die(self) -> None:
        for method in self.answers:
            self.answer(method, DEAD)

    def made(self, step: int, at: float = 1.0, compute_s: float = 0.0) -> None:
        heartbeat = Heartbeat(step=step, stepped_at=at, compute_s=compute_s)
        self.answers |= {"heartbeat": heartbeat, "last_step": heartbeat}


@dataclass
class FakeRay:
    """What a pool uses of Ray's module, and its other arguments. Time passes where nothing comes
    back.
    """

    exceptions = ray.exceptions
    __version__ = ray.__version__

    now: float = 1000.0
    actors: list[Actor] = field(default_factory=list)
    controllers: list[Actor] = field(default_factory=list)
    """Actors that host Ray Train's controller, in the order of their start."""
    must_join: bool = False
    """Whether new worker processes must join their engine's run before they train."""
    building: Any = None
    """Answer of a new controller to the question whether it is up."""
    admission: Any = b"context"
    """Answer of a new controller when a worker is to join its run."""
    options: list[dict[str, Any]] = field(default_factory=list)
    """With which worker actors were made."""
    launches: list[str] = field(default_factory=list)
    """Launches that worker actors were given, as JSON."""
    killed: list[Actor] = field(default_factory=list)
    draining: set[str] = field(default_factory=set)
    """Nodes that are being drained; a test adds some."""
    surveys: list[float] = field(default_factory=list)
    """When the pool asked for them."""
    cluster_nodes: list[dict[str, Any]] = field(default_factory=list)
    """What Ray tells about the nodes of the cluster."""
    is_away: bool = False
    """Whether the question for draining nodes fails."""
    signals: list[tuple[str, int]] = field(default_factory=list)
    """Who sent a SIGKILL, a task on a node or the pool itself; to which process."""

    def remote(self, what: Any) -> Any:
        return SimpleNamespace(
            options=lambda **options: SimpleNamespace(remote=partial(self._start, what, options))
        )

    def _start(self, what: Any, options: dict[str, Any], *arguments: Any) -> Any:
        if what is RayTrainController:
            self.controllers.append(Actor(len(self.controllers)))
            self.controllers[-1].answers = {
                "run": OPEN,
                "wait_until_up": self.building,
                "add_worker": self.admission,
                "end_run": None,
            }
            return self.controllers[-1]
        if isinstance(what, type) and issubclass(what, Worker):
            self.options.append(options)
            self.launches.append(arguments[0])
            self.actors.append(Actor(len(self.actors)))
            self.actors[-1].answers["prepare"] = self.must_join
            return self.actors[-1]
        self.signals.append((options["scheduling_strategy"].node_id, *arguments))
        return None

    def wait(
        self, calls: list[Call], *, num_returns: int, timeout: float
    ) -> tuple[list[Call], list[Call]]:
        done = [call for call in calls if call.answer is not OPEN][:num_returns]
        self.now += timeout if calls and len(done) < num_returns else 0.0
        return done, [call for call in calls if call not in done]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def get(self, call: Call, timeout: float | None = None) -> Any:
        if call.answer is OPEN:
            assert timeout is not None, f"{call.method} would be waited for for ever"
            self.now += timeout
            raise GetTimeoutError
        if isinstance(call.answer, BaseException):
            raise call.answer
        return call.answer

    def nodes(self) -> list[dict[str, Any]]:
        return self.cluster_nodes

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor)

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: HERE)

    def pool_arguments(self) -> dict[str, Any]:
        """Arguments of a pool over this cluster."""
        return {
            "ray": self,
            "clock": lambda: self.now,
            "pause": self.pass_time,
            "draining_nodes": self.get_draining_nodes,
            "kill_process": lambda pid: self.signals.append((ITSELF, pid)),
        }

    def get_draining_nodes(self) -> frozenset[str]:
        self.surveys.append(self.now)
        if self.is_away:
            raise ray.exceptions.RaySystemError("the GCS is away")
        return frozenset(self.draining)
