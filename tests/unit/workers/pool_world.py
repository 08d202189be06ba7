"""Worker processes over a Ray whose actors answer what the test says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accordion_workers.controller.actor_pool import ActorPool
from accordion_workers.controller.hang_detection import HEARTBEAT_S
from tests.unit.workers.fake_ray import Actor, FakeRay
from tests.unit.workers.world import launch


@dataclass
class World:
    pool: ActorPool
    ray: FakeRay

    def poll(self, seconds: float = HEARTBEAT_S) -> None:
        """Let time pass, in steps as the attempt takes them."""
        end = self.ray.now + seconds
        while self.ray.now < end:
            self.pool.poll(0.1)

    def hired(self, *numbers: int) -> list[Actor]:
        """Start processes and wait until they are ready; return them."""
        for _ in numbers:
            self.pool.start()
        self.poll()
        return self.ray.actors[-len(numbers) :]

    def starting(self, **answers: Any) -> Actor:
        """One more, whose start goes like this."""
        self.pool.start()
        actor = self.ray.actors[-1]
        actor.answers |= answers
        actor.calls[0].answer = actor.answers["locate"]
        return actor

    def seated(self, number: int) -> list[Actor]:
        """A first group of so many, that trains."""
        actors = self.hired(*range(number))
        self.pool.start_group(range(number), 1, None)
        return actors

    @property
    def ready(self) -> list[int]:
        return [one.number for one in self.pool.processes if one.ready_since is not None]

    @property
    def numbers(self) -> list[int]:
        return [one.number for one in self.pool.processes]


def pool_of(tmp_path: Path, *, kind: type[ActorPool] = ActorPool, **spec: Any) -> World:
    """A pool of a job with these parts of a spec."""
    fake = FakeRay()
    pool = kind(launch(tmp_path, **spec), measure=lambda _: None, **fake.pool_arguments())
    return World(pool, fake)
