"""Interface from the scheduler to the cluster, implemented by `ray_backend.py` and a fake in the
tests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from accordion_service.domain.capacity.requests import NodeType
from accordion_service.domain.capacity.resources import Resources
from accordion_workers.records.contract import (
    Cursor,
    DesiredState,
    Drained,
    EndRecord,
    Guest,
    Launch,
    PlanResult,
    PlanTask,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of the cluster."""

    id: str
    address: str
    alive: bool
    cpus: float
    """Total, not free: free resources lag behind, so the scheduler counts from its own rows."""
    gpus: float
    memory_bytes: int
    custom: Mapping[str, float] = field(default_factory=dict)
    """Total of each of Ray's custom resources."""
    labels: Mapping[str, str] = field(default_factory=dict)
    cpus_free: float | None = None
    """Not reserved by any program, as Ray counts; None if unknown."""
    gpus_free: float | None = None
    memory_bytes_free: float | None = None
    custom_free: Mapping[str, float] = field(default_factory=dict)
    """What is free of each custom resource; empty if unknown."""
    cpus_foreign: float = 0.0
    """Used by programs other than our jobs; filled by the scheduler."""
    gpus_foreign: float = 0.0
    memory_bytes_foreign: int = 0
    custom_foreign: Mapping[str, float] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
    """Number of worker processes of each job, by job id; filled by the scheduler."""
    avoided_by: tuple[str, ...] = ()
    """IDs of the jobs whose workers cannot start there for now; filled by the scheduler."""
    draining: bool = False
    """Whether the node is being drained: its processes move, and no new ones are placed on it."""
    name: str = ""
    """Name that the node keeps when Ray restarts on it; empty for its address."""
    unschedulable: str = ""
    """Why no more workers are placed there although it is alive, in one sentence; filled by the
    scheduler. Empty if they are.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorState:
    """State reported by a job's supervisor."""

    job_id: str
    attempt: int
    phase: Literal["starting", "resolving", "running", "waiting", "ended"]
    message: str = ""
    """What it waits for, as a message."""
    placed: tuple[str, ...] | None = None
    """Nodes of its placed worker processes, in the order in which they are kept; None if unknown.
    """
    avoided: tuple[str, ...] = ()
    """Nodes on which its worker processes could not start, as long as it tries others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerReport:
    """What is known of the cluster's autoscaler, from the last exchange with it."""

    exists: bool | None = None
    """Whether the cluster has one; None until somebody has looked."""
    node_types: tuple[NodeType, ...] = ()
    """What it can add; empty if it does not report that."""
    reports_feasibility: bool = False
    """Whether it reports if a request is feasible, and heeds labels: version 2 does."""
    request: tuple[Resources, ...] | None = None
    """Last request; None if none was made."""
    is_feasible: bool | None = None
    """Whether it can serve that request as a whole; None if it has not said."""
    num_exchanges: int = 0
    """Exchanges that have ended; it tells a new judgement from one that was seen before."""
    num_requests: int = 0
    """Requests that were made, repeated ones included."""
    num_failed: int = 0
    """Exchanges that failed."""
    problem: str = ""
    """Why the request is not in force, in one sentence; empty if it is."""


class Runtime(Protocol):
    """A cluster that runs supervisors. Calls block for seconds at most.

    Raises (every method): RuntimeUnavailable, when the cluster cannot be reached.
    """

    def nodes(self) -> list[Node]:
        """All known nodes, including dead ones."""

    def dashboard_url(self) -> str | None:
        """Address of Ray's dashboard as the scheduler reaches it; None if none answers."""

    def supervisors(self) -> list[SupervisorState]:
        """Live supervisors of this installation, and those of versions without installation ids."""

    def request_capacity(
        self, bundles: Sequence[Resources] | None, *, sender: int, always: bool
    ) -> AutoscalerReport:
        """Have the autoscaler provide this capacity in all, and return what is known of it now. The
        call returns at once: requests are made in the background, if they differ from the one
        before.

        Args:
            bundles: parts of the request, each of which must fit on one node. An empty one clears
                our own request; with None, the autoscaler is only polled.
            sender: the request is repeated if this number changes.
            always: whether to make requests also if no autoscaler is found.
        """

    def clear_capacity_request(self, *, sender: int, timeout_s: float) -> bool:
        """Clear our own request, and wait for it; return whether that was done in time."""

    def count_foreign_supervisors(self) -> dict[str, int]:
        """Number of living supervisors of other installations, by the installation's id."""

    def claim(self, scheduler: str, *, last_s: float) -> str:
        """Claim the cluster for a scheduler of this installation; return the holder of the
        claim.
        """

    def start(self, launch: Launch) -> None:
        """Start the job's supervisor, unless one already runs this attempt.

        Raises:
            OSError: the job's storage cannot be created.
        """

    def remove(self, job_id: str) -> None:
        """Kill the supervisor and its workers; does nothing if there is none."""

    def send_orders(self, job_id: str, orders: DesiredState) -> bool:
        """Send the orders to the Accordion actor; True once it has them. Repeating is harmless."""

    def drain(self, job_id: str, confirmed: Cursor) -> Drained:
        """Read records above the cursor; the cluster drops those that the database has."""

    def drain_many(self, cursors: Mapping[str, Cursor]) -> dict[str, Drained]:
        """Drain several jobs in one call, by id; jobs missing in the result are drained by the next
        call.
        """

    def guests(self) -> list[Guest]:
        """Guest runs that are registered with this installation and not forgotten."""

    def forget_guest(self, job_id: str) -> None:
        """Drop all that the cluster holds of an ended guest run."""

    def is_measuring(self, plan_id: str) -> bool:
        """Whether this plan was started and has not ended."""

    def advance_plan(self, plan: PlanTask, code: bytes | None) -> PlanResult | None:
        """Start measuring unless this plan is being measured; return its result once it is there.

        `code` is the job's uploaded code, which is read at the start only.
        """

    def end_plan(self, plan_id: str) -> None:
        """Stop measuring; does nothing for a plan that is not measured."""

    def read_outcome(
        self, job_id: str, storage: str, *, retried_attempt: int = 0
    ) -> EndRecord | None:
        """How the job ended, from the end file beside its checkpoints; None while it has not. The
        end of an attempt up to `retried_attempt` does not count.
        """

    def remove_files(self, job_id: str, storage: str, url: str | None) -> None:
        """Remove the job's directory, and its part of the storage at a URL. Called from a thread of
        its own, so it must not use the cluster.

        Raises:
            OSError: some files could not be removed.
        """

    def list_checkpoints(self, job_id: str, storage: str, url: str | None) -> dict[str, bool]:
        """Return the names of the checkpoints that a job has in its directory, or in its part of
        the storage at a URL, and whether each is complete. Called from a thread of its own, so it
        must not use the cluster.

        Raises:
            OSError: the storage cannot be reached.
        """

    def remove_checkpoints(
        self, job_id: str, storage: str, url: str | None, *, names: Collection[str]
    ) -> None:
        """Remove these checkpoints; called like `list_checkpoints`.

        Raises:
            OSError: some could not be removed.
        """

    def history(self, job_id: str, storage: str, *, retried_attempt: int = 0) -> Drained:
        """All records of the job in order, from its end file, if it counts, or else its journal."""
