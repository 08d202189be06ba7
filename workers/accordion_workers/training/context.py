"""Context of the training loop on every rank: from its process, and its connection to the
service.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from accordion.base.messages import Decision, Report
from accordion_workers.records.contract import DesiredState, Launch, Payload, Progress, Started

if TYPE_CHECKING:
    from accordion.compress.step_signals import Signal
    from accordion_workers.common.peers import Peers
    from accordion_workers.data import Data
    from accordion_workers.tasks.base import Task


class Link(Protocol):
    """Rank 0's connection to the Accordion actor and the database. On other ranks (`NoLink`) all
    methods except `log` do nothing.

    Only `started`, `decide` and `flush` wait for the network, each with a time limit.
    """

    def on_orders(self, callback: Callable[[DesiredState], None]) -> None:
        """Call `callback` with the desired state known now, if any, and with every newer one from a
        thread of the link.
        """

    def started(self, started: Started, controller_state: Mapping[str, Any]) -> None:
        """Post the record and register this controller with the actor; once a generation, before
        any other call.
        """

    def post(self, payload: Payload) -> None:
        """Keep a record until the database confirms it.

        On return the record is in the journal beside the checkpoints, so a checkpoint written
        afterwards never knows more than the journal. Checkpoints hold no records.

        Raises:
            OSError: the storage cannot be written.
        """

    def progress(self, progress: Progress) -> None:
        """Report the job's progress; only the newest report is kept, and one may be lost."""

    def log(self, text: str) -> None:
        """Add lines to the job's log, under this rank."""

    def decide(
        self, report: Report, proposal: Decision, controller_state: Mapping[str, Any]
    ) -> Decision:
        """Return the actor's decision, or the proposal if the actor does not answer in time.

        `controller_state` is the local controller's state after it made the proposal.
        """

    def flush(self, timeout_s: float) -> bool:
        """Wait until the actor holds all posted records; return False after the timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousGroup:
    """How the previous worker group ended, and at which step."""

    cause: Literal["resize", "recovery"]
    world_size: int
    step: int
    """Last step that the group is known to have completed."""
    time: float
    """Time at which the end was seen, in seconds since 1970."""


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
    """Shared between a worker's process and its training loop: signals requested by the supervisor,
    and the loop's progress.
    """

    def __init__(self) -> None:
        self.step = 0
        """Steps completed since the start of the job, as far as this worker knows."""
        self.stepped_at = 0.0
        """Time of the last completed step, in seconds since 1970."""
        self.compute_s = 0.0
        """Mean seconds per step that this rank lately loaded data and computed."""
        self.compute_s_by_rank: tuple[float, ...] = ()
        """`compute_s` of each rank, as last reported by the supervisor."""
        self.progress = RankProgress()
        self.activity_count = 0
        """Activity counter; it does not change while the worker makes no progress."""
        self.broken_group = 0
        """Generation of the newest group that is known to have lost a member; 0 if none."""
        self._metrics: dict[str, float] = {}
        self._signals: set[Signal] = set()
        self._listener: Callable[[Signal], None] | None = None
        self._lock = threading.Lock()

    def remove_listener(self) -> None:
        """Drop the listener, and with it the loop's state, after the loop has ended."""
        with self._lock:
            self._listener = None

    def enter_phase(self, doing: Doing, *, epoch: int, step: int) -> None:
        """Record the phase that the loop enters and the steps completed so far."""
        self.progress = RankProgress(step=step, epoch=epoch, doing=doing)
        self.activity_count += 1

    def show_wait(self, text: str) -> None:
        """Show what this worker waits for, which counts as activity; an empty text clears it."""
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
        """Return the control for the next group, without pending signals."""
        control = LoopControl()
        control.step, control.stepped_at = self.step, self.stepped_at
        # Metrics of an unfinished epoch stay for the next group if rank 0 keeps its process.
        control._metrics = self.take_metrics()
        return control

    def request_signal(self, signal: Signal) -> None:
        """Request a signal to all ranks at the loop's next step boundary; callable from any
        thread, also before there is a listener.
        """
        with self._lock:
            self._signals.add(signal)
            if self._listener is not None:
                self._listener(signal)

    def set_listener(self, listener: Callable[[Signal], None]) -> None:
        """Call `listener` with each signal requested so far and from now on."""
        with self._lock:
            self._listener = listener
            for signal in self._signals:
                listener(signal)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """State before a round of local steps: what a checkpoint of that moment would hold."""

    name: str
    """Name that the checkpoint would have."""
    epoch: int
    shared: Mapping[str, Any]
    own: Mapping[str, Any]
    """What differs from rank to rank, and its optimizer's state."""


@dataclass(slots=True)
class RoundMemory:
    """What a worker process remembers of its newest round; it outlives worker groups."""

    newest: RoundState | None = None
    decision: Decision | None = None
    """Decision since which `decided` has not changed."""
    decided: Mapping[str, Any] = field(default_factory=dict)
    """What only rank 0 knows of decisions."""
    is_too_large: bool = False
    """Whether the state is too large to be kept."""


def _group_peers() -> Peers:
    """Return the workers of the default process group; the supervisor, which loads no torch,
    imports this module.
    """
    from accordion_workers.common.peers import GroupPeers

    return GroupPeers()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """One rank's place in a worker group. The process group is initialised before the loop runs."""

    launch: Launch
    generation: int
    """Generation of the worker group; it grows with every group of the job, over all attempts."""
    rank: int
    world_size: int
    device: str
    """Device assigned by Ray: `cpu` or `cuda:0`."""
    link: Link
    previous_group: PreviousGroup | None = None
    """The previous group; None for the attempt's first."""
    control: LoopControl = field(default_factory=LoopControl)
    peers: Peers = field(default_factory=_group_peers)
    parts: tuple[Task, Data, Data] | None = None
    """The task, its training data and its held-out data, if the process has loaded them before."""
    memory: RoundMemory | None = None
    """What the process remembers of rounds; None if it ends with its group."""

    @property
    def checkpoints(self) -> Path:
        """Directory of the job's checkpoints, the same for all ranks, generations and attempts."""
        return Path(self.launch.storage) / "checkpoints"


class NoLink:
    """The link of a rank that reports nothing: log lines go to a function, everything else is
    dropped.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log

    def on_orders(self, callback: Callable[[DesiredState], None]) -> None:
        """Do nothing: only rank 0 receives orders."""

    def started(self, started: Started, controller_state: Mapping[str, Any]) -> None:
        """Do nothing: rank 0 reports it."""

    def post(self, payload: Payload) -> None:
        """Do nothing: rank 0 reports it."""

    def progress(self, progress: Progress) -> None:
        """Do nothing: rank 0 reports it."""

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
        """Return True: nothing is pending."""
        del timeout_s
        return True
