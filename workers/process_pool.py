"""What an attempt asks of the worker processes it has: `crew.RayCrew` is the one on Ray."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from workers.context import Interruption, RankProgress
from workers.contract import ResizeRecord
from workers.elastic import Process
from workers.starts import FailedStart


class Crew(Protocol):
    """The processes of one attempt. One thread uses it."""

    @property
    def processes(self) -> list[Process]:
        """Those that live, by number."""

    def hire(self, avoid: Collection[str] = ()) -> None:
        """Ask for one more process; it starts as soon as the cluster has room on a node that is not to be avoided."""

    def dismiss(self, number: int) -> None:
        """End a process by force; nothing happens where there is none."""

    def expel(self, number: int) -> None:
        """End one that trains, by whatever force it takes; it counts as returned, and not as the cause of anything."""

    def look(self, timeout_s: float) -> None:
        """Take in what happened, or wait so long for something to happen."""

    def failed_starts(self) -> list[FailedStart]:
        """Processes that ended before they were ready, since the last call."""

    def seat(self, group: Sequence[int], generation: int, interruption: Interruption | None) -> None:
        """Let these train, in rank order.

        Raises:
            ProcessLost: the one that leads them does not answer.
        """

    def returned(self) -> dict[int, str | BaseException]:
        """What the group's members came back with so far, by rank: the loop's outcome, or what ended them."""

    def resize(self, note: ResizeRecord) -> None:
        """Have the group save and come back at its next step boundary, and rank 0 keep the note."""

    def last_step(self) -> tuple[int, float] | None:
        """The newest step that the newest group is known to have made, and when; None where it made none."""

    def progress(self) -> dict[int, RankProgress]:
        """How far each rank of the newest group was, as far as that was heard; `last_step` asks for it."""

    def idle_s(self) -> float:
        """How long no rank of the newest group has given a sign of training."""

    def code_places(self) -> dict[int, str]:
        """The lines of people's own code where the ranks of the newest group are, of those that answer."""

    def close(self) -> None:
        """End all processes."""
