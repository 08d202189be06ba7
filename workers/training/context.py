"""What a worker's process hands to the training loop on every rank, and the road it has to the rest
of the world.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from accordion.messages import Decision, Report
from workers.contract import DesiredState, Launch, Payload, Progress, Started

if TYPE_CHECKING:
    from accordion.step_signals import Signal
    from workers.data import Data
    from workers.tasks.base import Task


class Link(Protocol):
    """Rank 0's road to the Accordion actor and the database. On other ranks (`NoLink`) everything
    but `log` is silent.

    No method waits for the network, but `started`, `decide` and `flush`, each with a limit.
    """

    def on_orders(self, callback: Callable[[DesiredState], None]) -> None:
        """Call it with the orders known now, if any, and from a thread of the link with all newer
        ones.
        """

    def started(self, started: Started, controller_state: Mapping[str, Any]) -> None:
        """Post the record, and make the actor hold this controller; once a generation, before
        anything else.
        """

    def post(self, payload: Payload) -> None:
        """Keep a record until the database confirms it.

        On return it is in the journal beside the checkpoints, so a checkpoint that is written
        afterwards never knows more than the journal; a checkpoint itself holds no records.

        Raises:
            OSError: the storage cannot be written.
        """

    def progress(self, progress: Progress) -> None:
        """Say where the job is; only the newest is kept, and one may be lost."""

    def log(self, text: str) -> None:
        """Add lines to the job's log, under this rank."""

    def decide(
        self, report: Report, proposal: Decision, controller_state: Mapping[str, Any]
    ) -> Decision:
        """Ask what shall be in force: the actor's answer, or the proposal where it does not answer
        in time.

        `controller_state` is that of the local controller after it made the proposal.
        """

    def flush(self, timeout_s: float) -> bool:
        """Wait until the actor holds all that was posted; False where it took too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousGroup:
    """What the worker group before this one was doing when it ended."""

    cause: Literal["resize", "recovery"]
    world_size: int
    step: int
    """Last step that it is known to have made."""
    time: float
    """When that was seen; seconds since 1970."""


Doing = Literal["starting", "training", "epoch end", "finished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """Progress of one rank of a worker group, or its last progress after the group ended."""

    step: int = 0
    """Steps completed since the start of the job when the current phase began."""
    epoch: int = 0
    doing: Doing = "starting"
    waiting_for: str = ""
    """What this rank waits for, in one sentence; empty while it does not wait."""

    def __str__(self) -> str:
        match self.doing:
            case "starting":
                return "at its start"
            case "training":
                return f"in step {self.step}"
            case "epoch end":
                return f"at the end of epoch {self.epoch} after {self.step} steps"
            case "finished":
                return f"at its end after {self.step} steps"


class LoopControl:
    """Between a worker's process and the loop in it: what the supervisor wants of it, and how far
    it is.
    """

    def __init__(self) -> None:
        self.step = 0
        """Steps that the job has made, as far as this worker knows."""
        self.stepped_at = 0.0
        """When it made the last of them; seconds since 1970."""
        self.compute_s = 0.0
        """What this rank computed for its newest step, s."""
        self.compute_s_by_rank: tuple[float, ...] = ()
        """Likewise of all ranks, as the supervisor last told."""
        self.progress = RankProgress()
        self.activity_count = 0
        """Activity counter: a worker whose counter stands still makes no progress."""
        self._metrics: dict[str, float] = {}
        self._words: set[Signal] = set()
        self._listener: Callable[[Signal], None] | None = None
        self._lock = threading.Lock()

    def remove_listener(self) -> None:
        """The loop has ended: nobody listens, and nothing of it is kept."""
        with self._lock:
            self._listener = None

    def enter_phase(self, doing: Doing, *, epoch: int, step: int) -> None:
        """Record the phase that the loop enters and the steps completed so far."""
        self.progress = RankProgress(step=step, epoch=epoch, doing=doing)
        self.activity_count += 1

    def show_wait(self, text: str) -> None:
        """Show what this worker waits for, which counts as activity; an empty text takes
        that back.
        """
        self.progress = replace(self.progress, waiting_for=text)
        self.activity_count += 1

    def report_metrics(self, metrics: Mapping[str, float], *, most: int) -> list[str]:
        """Keep metrics for the record of the present epoch; return the names beyond the `most`
        first.

        A later value of a name replaces an earlier one.
        """
        with self._lock:
            self._metrics |= metrics
            surplus = list(self._metrics)[most:]
            for name in surplus:
                del self._metrics[name]
        return surplus

    def take_metrics(self) -> dict[str, float]:
        """Return and clear the metrics reported since the last epoch's end."""
        with self._lock:
            metrics, self._metrics = self._metrics, {}
            return metrics

    def for_next_group(self) -> LoopControl:
        """For the next group: nothing is asked of it yet."""
        control = LoopControl()
        control.step, control.stepped_at = self.step, self.stepped_at
        # an epoch that the next group finishes keeps what was reported in it, where rank 0 stays in
        # its process.
        control._metrics = self.take_metrics()
        return control

    def request_signal(self, word: Signal) -> None:
        """Have the loop announce it at its next step boundary; any thread, before it
        listens too.
        """
        with self._lock:
            self._words.add(word)
            if self._listener is not None:
                self._listener(word)

    def set_listener(self, listener: Callable[[Signal], None]) -> None:
        """Hear what was asked for so far, and from now on."""
        with self._lock:
            self._listener = listener
            for word in self._words:
                listener(word)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """One rank's place in a worker group. The process group is initialised when the loop
    gets it.
    """

    launch: Launch
    generation: int
    """Grows with every worker group of the job, over all attempts."""
    rank: int
    world_size: int
    device: str
    """As Ray gave it: `cpu` or `cuda:0`."""
    link: Link
    previous_group: PreviousGroup | None = None
    """None for the attempt's first group."""
    control: LoopControl = field(default_factory=LoopControl)
    parts: tuple[Task, Data, Data] | None = None
    """The task and its data, where the process has loaded them before."""

    @property
    def checkpoints(self) -> Path:
        """Directory of the job's checkpoints, the same for all ranks, generations and attempts."""
        return Path(self.launch.storage) / "checkpoints"


class NoLink:
    """The link of a rank that reports nothing: its log lines go to the function given, all else to
    nobody.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log

    def on_orders(self, callback: Callable[[DesiredState], None]) -> None:
        """No orders come here."""

    def started(self, started: Started, controller_state: Mapping[str, Any]) -> None:
        """Rank 0 says it."""

    def post(self, payload: Payload) -> None:
        """Rank 0 says it."""

    def progress(self, progress: Progress) -> None:
        """Rank 0 says it."""

    def log(self, text: str) -> None:
        """Add lines to the job's log, under this rank."""
        self._log(text)

    def decide(
        self, report: Report, proposal: Decision, controller_state: Mapping[str, Any]
    ) -> Decision:
        """Return the proposal: only rank 0 asks."""
        del report, controller_state
        return proposal

    def flush(self, timeout_s: float) -> bool:
        """Nothing waits here."""
        del timeout_s
        return True
