"""One attempt with processes and a clock that the test holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.unit.workers.fake_pool import FakeCrew, Outcome
from tests.unit.workers.world import launch
from workers.contract import DesiredState, EndRecord, FailureRecord, PausedRecord
from workers.controller.attempt import Attempt
from workers.controller.failure_policy import FailureCounts
from workers.spec import WorkersSpec


@dataclass
class FakeDesk:
    """Implements `AttemptHost`."""

    wanted: DesiredState = field(default_factory=DesiredState)
    records: list[FailureRecord] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    generation: int = 0
    saved: int = 0
    placed: tuple[str, ...] = ()
    has_progressed: bool = True

    def claim(self) -> int:
        self.generation += 1
        return self.generation

    def record(self, failure: FailureRecord) -> None:
        self.records.append(failure)

    def progressed(self, generation: int) -> bool:
        del generation
        return self.has_progressed

    def has_started(self, generation: int) -> bool:
        del generation
        return self.has_progressed

    def show_placement(self, nodes: tuple[str, ...]) -> None:
        self.placed = nodes

    def saved_step(self) -> int:
        return self.saved

    def say(self, message: str, *, waits: bool = False) -> None:
        self.said.append(f"waits: {message}" if waits else message)

    def orders(self) -> DesiredState:
        return self.wanted

    def stopped_by(self) -> Literal["cancel", "pause"]:
        assert self.wanted.stop is not None
        return self.wanted.stop


@dataclass
class World:
    attempt: Attempt
    crew: FakeCrew
    desk: FakeDesk

    def run(self, *events: Callable[[FakeCrew], Any]) -> EndRecord | PausedRecord:
        """Let one event happen after the other, some looks apart; after the last the group
        completes.
        """
        left = list(events)

        def look(crew: FakeCrew) -> None:
            crew.step += 1
            if crew.step % 40:
                return
            if left:
                left.pop(0)(crew)
            else:
                crew.come_back("completed")

        self.crew.on_look = look
        return self.attempt.run()


def worlds(tmp_path: Path) -> Callable[..., World]:
    """Makes attempts whose groups end like this."""

    def make(
        *outcomes: Outcome | None, least: int = 1, most: int = 2, gpus: int = 0, **crew: Any
    ) -> World:
        workers = WorkersSpec(min=least, max=most, gpus=gpus)
        started = launch(tmp_path, workers=workers).model_copy(update={"workers": most})
        made = FakeCrew(started, list(outcomes or (None,)), False, **crew)
        desk = FakeDesk()
        return World(
            Attempt(
                launch=started,
                crew=made,
                desk=desk,
                failures=FailureCounts(),
                clock=lambda: made.now,
            ),
            made,
            desk,
        )

    return make
