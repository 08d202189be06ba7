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
from workers.controller import actor_pool as crew_module
from workers.controller.actor_pool import PULSE_S, ActorPool


@dataclass
class World:
    crew: ActorPool
    ray: FakeRay

    def look(self, seconds: float = PULSE_S) -> None:
        """So long, in steps as the attempt takes them."""
        end = self.ray.now + seconds
        while self.ray.now < end:
            self.crew.look(0.1)

    def hired(self, *numbers: int) -> list[Actor]:
        """As many, and ready."""
        for _ in numbers:
            self.crew.hire()
        self.look()
        return self.ray.actors[-len(numbers) :]

    def starting(self, **answers: Any) -> Actor:
        """One more, whose start goes like this."""
        self.crew.hire()
        actor = self.ray.actors[-1]
        actor.answers |= answers
        actor.calls[0].answer = actor.answers["place"]
        return actor

    def seated(self, number: int) -> list[Actor]:
        """A first group of so many, that trains."""
        actors = self.hired(*range(number))
        self.crew.seat(range(number), 1, None)
        return actors

    @property
    def ready(self) -> list[int]:
        return [one.number for one in self.crew.processes if one.ready_since is not None]

    @property
    def numbers(self) -> list[int]:
        return [one.number for one in self.crew.processes]


def crew_of(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    kind: type[ActorPool] = ActorPool,
    **spec: Any,
) -> World:
    """A crew of a job with these parts of a spec; no node of its cluster is drained."""
    monkeypatch.setattr(crew_module, "get_draining_nodes", frozenset)
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
