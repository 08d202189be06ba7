"""What the scheduler asks of the cluster. Real Ray is `ray_backend.py`; a fake lives in the
tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from workers.contract import Cursor, DesiredState, Drained, EndRecord, Guest, Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of the cluster."""

    id: str
    address: str
    alive: bool
    cpus: float
    """In all, not what is free: free resources lag behind, so the scheduler counts by its own rows.
    """
    gpus: float
    memory_bytes: int
    cpus_free: float | None = None
    """Not reserved by any program, as Ray counts; None if unknown."""
    gpus_free: float | None = None
    cpus_foreign: float = 0.0
    """Used by programs other than our jobs; filled by the scheduler."""
    gpus_foreign: float = 0.0
    draining: bool = False
    """It is about to go: what runs there moves, and nothing new is placed on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorState:
    """What a job's supervisor says of itself."""

    job_id: str
    attempt: int
    phase: Literal["starting", "running", "waiting", "ended"]
    message: str = ""
    """What it is waiting for, in one sentence."""
    placed: tuple[str, ...] | None = None
    """Nodes of its placed worker processes, in the order in which they are kept; None if unknown.
    """


class Runtime(Protocol):
    """A place where supervisors run. Calls block for seconds at most.

    Raises (every method): RuntimeUnavailable, when the cluster cannot be reached.
    """

    def nodes(self) -> list[Node]:
        """All nodes known, the dead ones included."""

    def dashboard_url(self) -> str | None:
        """Address of Ray's dashboard as the scheduler reaches it; None if none answers."""

    def supervisors(self) -> list[SupervisorState]:
        """Live supervisors of this installation, and those of versions without installation ids."""

    def foreign(self) -> dict[str, int]:
        """Number of living supervisors of other installations, by the installation's id."""

    def claim(self, scheduler: str, *, last_s: float) -> str:
        """Claim the cluster for a scheduler of this installation; return the holder of the
        claim.
        """

    def start(self, launch: Launch) -> None:
        """Start the job's supervisor; one that already runs this attempt is left as it is.

        Raises:
            OSError: the job's storage cannot be made.
        """

    def remove(self, job_id: str) -> None:
        """End the supervisor and its workers at once; nothing happens where there is none."""

    def order(self, job_id: str, orders: DesiredState) -> bool:
        """Hand the orders to the job's central record; True once they are there. Repeating is
        harmless.
        """

    def drain(self, job_id: str, confirmed: Cursor) -> Drained:
        """Records above the cursor; those up to it are dropped there, since the database holds
        them.
        """

    def drain_many(self, cursors: Mapping[str, Cursor]) -> dict[str, Drained]:
        """Drain several jobs in one call, by id; jobs missing in the result are drained by the next
        call.
        """

    def guests(self) -> list[Guest]:
        """Guest runs that are registered with this installation and not forgotten."""

    def forget_guest(self, job_id: str) -> None:
        """Drop all that the cluster holds of a guest run that is over."""

    def outcome(self, job_id: str, storage: str) -> EndRecord | None:
        """How the job ended, from the end file beside its checkpoints; None while it has not."""

    def history(self, job_id: str, storage: str) -> Drained:
        """All that the job ever recorded, in order: its end file, or its journal while there is
        none.
        """
