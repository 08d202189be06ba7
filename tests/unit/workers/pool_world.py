"""Worker processes over a Ray whose actors answer what the test says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from tests.unit.workers.fake_ray import HERE, Actor, FakeRay
from tests.unit.workers.world import launch
from workers.controller import actor_pool as pool_module
from workers.controller.actor_pool import ActorPool
from workers.controller.hang_detection import HEARTBEAT_S


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


def pool_of(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    kind: type[ActorPool] = ActorPool,
    **spec: Any,
) -> World:
    """A pool of a job with these parts of a spec; no node of its cluster is drained."""
    monkeypatch.setattr(pool_module, "get_draining_nodes", frozenset)
    fake = FakeRay()
    context = SimpleNamespace(get_node_id=lambda: HERE)
    for name, do in {
        "remote": fake.remote,
        "wait": fake.wait,
        "get": fake.get,
        "kill": fake.killed.append,
    }.items():
        monkeypatch.setattr(ray, name, do)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(os, "kill", fake.end)
    own = {"clock": lambda: fake.now, "pause": fake.pass_time, "measure": lambda _: None}
    return World(kind(launch(tmp_path, **spec), **own), fake)
