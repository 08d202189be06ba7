"""State that a worker pool keeps for each of its processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from accordion_workers.records.contract import JobSpec
from accordion_workers.worker.memory import MemoryWatch
from accordion_workers.worker.process import Heartbeat, ProcessLocation

Provision = Literal["install_packages", "fetch_data"]
"""Method of a process that brings something to its node before the process prepares."""


def list_provisions(spec: JobSpec) -> tuple[Provision, ...]:
    """Return what each process of a job must bring to its node, in this order."""
    packages: tuple[Provision, ...] = ("install_packages",) if spec.pip else ()
    return (*packages, "fetch_data") if spec.data else packages


@dataclass(slots=True, eq=False)
class Member:
    """One worker process: its actor, its open calls and what it last reported."""

    number: int
    actor: Any
    starting: Any
    """Call to `locate`, then to `install_packages` and `fetch_data` if the job needs them, then to
    `prepare`; None once the process is prepared.
    """
    location: ProcessLocation | None = None
    provision: Provision | None = None
    """What the process brings to its node, or waits for another process to bring."""
    installs_s: float = 0.0
    """Seconds spent installing packages."""
    prepares_s: float = 0.0
    """Seconds spent preparing, after packages and data were there."""
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


__all__ = ["Member", "Provision", "list_provisions"]
