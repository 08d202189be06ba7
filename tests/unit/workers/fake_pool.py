"""Worker processes without Ray: they soon are ready, and their groups end as the test says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from accordion_workers.common.errors import ProcessLost
from accordion_workers.controller.scaling_policy import Process
from accordion_workers.controller.start_failures import FailedStart
from accordion_workers.hub.journal import Journal
from accordion_workers.records.contract import EndRecord, Launch, PausedRecord, ResizeRecord
from accordion_workers.training.context import PreviousGroup, RankProgress
from tests.unit.workers.world import note

Outcome = str | Mapping[int, str | BaseException]
"""What all members come back with, or some of them with this and the others with a broken
collective.
"""
BROKEN = RuntimeError("gloo/transport/tcp/pair.cc: Connection closed by peer")


@dataclass
class FakePool:
    """Implements `WorkerPool`. Time passes only in `poll`."""

    launch: Launch
    outcomes: list[Outcome | None]
    """Outcomes of one group after the other, the last one repeated; None: trains until a resize."""
    note_progress: bool = True
    deaf: bool = False
    """Whether groups train on that are asked to resize."""
    hangs: bool = False
    """Whether no rank of a group gives a sign of training."""
    unseated: int = 0
    """How many of the next groups are not seated, since their leader does not answer."""
    nodes: dict[int, str] = field(default_factory=dict)
    """Where processes are placed, by number; the others on `a`."""
    slow: set[int] = field(default_factory=set)
    """Numbers of the processes that never become ready."""
    now: float = 0.0
    seated: list[tuple[int, ...]] = field(default_factory=list)
    seated_when: list[float] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    interruptions: list[PreviousGroup | None] = field(default_factory=list)
    notes: list[ResizeRecord] = field(default_factory=list)
    dismissed: list[int] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    killed_when: list[float] = field(default_factory=list)
    left_when: list[float] = field(default_factory=list)
    """When the members of a broken group were told to leave."""
    failed: list[FailedStart] = field(default_factory=list)
    avoided: list[frozenset[str]] = field(default_factory=list)
    """Nodes to be avoided, of one hiring after the other."""
    on_poll: Callable[[FakePool], None] | None = None
    start_s: float = 0.3
    """How long a process takes to start."""
    hired: int = 0
    hired_when: list[float] = field(default_factory=list)
    step: int = 0
    closed: bool = False
    outcome: EndRecord | PausedRecord | None = None
    """What `close` was given."""
    members: dict[int, Process] = field(default_factory=dict)
    back: dict[int, str | BaseException] = field(default_factory=dict)
    hired_at: float = 0.0
    progress_by_rank: dict[int, RankProgress] = field(default_factory=dict)

    @property
    def processes(self) -> list[Process]:
        return list(self.members.values())

    def start(self, avoid: Collection[str] = ()) -> None:
        node = self.nodes.get(self.hired, "a")
        self.members[self.hired] = Process(
            number=self.hired, ready_since=None, node=node, host=f"host-{node}"
        )
        self.avoided.append(frozenset(avoid))
        self.hired += 1
        self.hired_at = self.now
        self.hired_when.append(self.now)

    def has_other_node(self, nodes: Collection[str]) -> bool:
        return not {"a", *self.nodes.values()} <= set(nodes)

    def stop(self, number: int) -> None:
        if self.members.pop(number, None):
            self.dismissed.append(number)

    def kill(self, number: int) -> None:
        del self.members[number]
        self.killed.append(number)
        self.killed_when.append(self.now)
        self.back[self.seated[-1].index(number)] = "killed"

    def leave(self, number: int) -> None:
        """Its node begins to be drained."""
        self.members[number] = replace(self.members[number], leaving_since=self.now)

    def poll(self, timeout_s: float) -> None:
        self.now += timeout_s
        for number, process in self.members.items():
            if (
                process.ready_since is None
                and number not in self.slow
                and self.now >= self.hired_at + self.start_s
            ):
                self.members[number] = replace(process, ready_since=self.now)
        if self.on_poll is not None:
            self.on_poll(self)

    def cannot_start(self, number: int, error: BaseException) -> None:
        """It ends before it is ready."""
        process = self.members.pop(number)
        self.failed.append(FailedStart(error=error, node=process.node, host=process.host))

    def take_failed_starts(self) -> list[FailedStart]:
        failed, self.failed = self.failed, []
        return failed

    def start_group(
        self, group: Sequence[int], generation: int, previous_group: PreviousGroup | None
    ) -> None:
        self.seated.append(tuple(group))
        self.seated_when.append(self.now)
        self.generations.append(generation)
        self.interruptions.append(previous_group)
        self.back = {}
        if self.unseated:
            self.unseated -= 1
            self.stop(group[0])
            raise ProcessLost("rank 0's process opened no store for its group")
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if self.note_progress:
            storage = Path(self.launch.storage)
            Journal(storage, attempt=1, generation=generation, clock=lambda: 0.0).write(
                note(generation)
            )
        if outcome is not None:
            self.come_back(outcome)

    def come_back(self, outcome: Outcome) -> None:
        """The present group ends; whose process died lives no more."""
        group = self.seated[-1]
        if isinstance(outcome, str):
            self.back = dict.fromkeys(range(len(group)), outcome)
            return
        self.back = {rank: outcome.get(rank, BROKEN) for rank in range(len(group))}
        for rank, error in outcome.items():
            if type(error).__module__.startswith("ray"):
                self.stop(group[rank])

    def results(self) -> dict[int, str | BaseException]:
        return dict(self.back)

    def leave_group(self) -> None:
        self.left_when.append(self.now)

    def resize(self, note: ResizeRecord) -> None:
        self.notes.append(note)
        if not self.deaf:
            self.come_back("resized")

    def last_step(self) -> tuple[int, float] | None:
        return (self.step, self.now) if self.step else None

    def progress(self) -> dict[int, RankProgress]:
        return dict(self.progress_by_rank)

    def idle_s(self) -> float:
        return self.now - self.seated_when[-1] if self.hangs else 0.0

    def find_user_lines(self) -> dict[int, str]:
        return {0: "train.py:7"}

    def close(self, outcome: EndRecord | PausedRecord | None = None) -> None:
        self.closed = True
        self.outcome = outcome
