"""One attempt with processes and a clock that the test holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from accordion_workers.controller.attempt import Attempt
from accordion_workers.controller.failure_policy import FailureCounts
from accordion_workers.records.contract import DesiredState, EndRecord, FailureRecord, PausedRecord
from accordion_workers.spec.job import WorkersSpec
from tests.unit.workers.fake_pool import FakePool, Outcome
from tests.unit.workers.world import launch


@dataclass
class FakeHost:
    """Implements `AttemptHost`."""

    wanted: DesiredState = field(default_factory=DesiredState)
    records: list[FailureRecord] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    generation: int = 0
    saved: int = 0
    placed: tuple[str, ...] = ()
    avoided: frozenset[str] = frozenset()
    makes_progress: bool = True

    def claim_generation(self) -> int:
        self.generation += 1
        return self.generation

    def record_failure(self, failure: FailureRecord) -> None:
        self.records.append(failure)

    def has_progressed(self, generation: int) -> bool:
        del generation
        return self.makes_progress

    def has_started(self, generation: int) -> bool:
        del generation
        return self.makes_progress

    def publish_placement(self, nodes: tuple[str, ...], avoided: frozenset[str]) -> None:
        self.placed, self.avoided = nodes, avoided

    def saved_step(self) -> int:
        return self.saved

    def publish_status(self, message: str, *, is_waiting: bool = False) -> None:
        self.said.append(f"waits: {message}" if is_waiting else message)

    def desired_state(self) -> DesiredState:
        return self.wanted

    def requested_stop(self) -> Literal["cancel", "pause"]:
        assert self.wanted.stop is not None
        return self.wanted.stop


@dataclass
class World:
    attempt: Attempt
    pool: FakePool
    host: FakeHost

    def run(self, *events: Callable[[FakePool], Any]) -> EndRecord | PausedRecord:
        """Let one event happen after the other, some looks apart; after the last the group
        completes.
        """
        left = list(events)

        def poll(pool: FakePool) -> None:
            pool.step += 1
            if pool.step % 40:
                return
            if left:
                left.pop(0)(pool)
            else:
                pool.come_back("completed")

        self.pool.on_poll = poll
        return self.attempt.run()


def worlds(tmp_path: Path) -> Callable[..., World]:
    """Makes attempts whose groups end like this."""

    def make(
        *outcomes: Outcome | None, least: int = 1, most: int = 2, gpus: int = 0, **pool: Any
    ) -> World:
        workers = WorkersSpec(min=least, max=most, gpus=gpus)
        started = launch(tmp_path, workers=workers).model_copy(update={"workers": most})
        made = FakePool(started, list(outcomes or (None,)), False, **pool)
        host = FakeHost()
        return World(
            Attempt(
                launch=started,
                pool=made,
                host=host,
                failures=FailureCounts(),
                clock=lambda: made.now,
            ),
            made,
            host,
        )

    return make
