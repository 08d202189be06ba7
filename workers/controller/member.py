"""State that a worker pool keeps for each of its processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workers.worker.memory import MemoryWatch
from workers.worker.process import Heartbeat, ProcessLocation


@dataclass(slots=True, eq=False)
class Member:
    """One worker process: its actor, its open calls and what it last reported."""

    number: int
    actor: Any
    starting: Any
    """Call to `locate`, then to `install_packages` if the job has some, then to `prepare`; None
    once the process is prepared.
    """
    location: ProcessLocation | None = None
    is_installing: bool = False
    """Whether the process installs the packages of the job, or waits for another one that does."""
    installs_s: float = 0.0
    """Seconds spent installing."""
    prepares_s: float = 0.0
    """Seconds spent preparing, after packages were installed."""
    ready_since: float | None = None
    leaving_since: float | None = None
    training: Any = None
    heartbeat_call: Any = None
    heartbeat_at: float = 0.0
    """When the newest heartbeat was requested."""
    silent_s: float = 0.0
    """Seconds since the open heartbeat was requested."""
    heartbeat: Heartbeat | None = None
    memory: MemoryWatch = field(default_factory=MemoryWatch)
    has_joined: bool = True
    """Whether the process may train; False until it has joined the run of its engine."""

    def open_calls(self) -> list[Any]:
        """Return the open calls to the process."""
        return [
            call for call in (self.starting, self.training, self.heartbeat_call) if call is not None
        ]


__all__ = ["Member"]
