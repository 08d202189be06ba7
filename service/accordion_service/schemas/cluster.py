"""Response models of the lists of tasks, methods and policies, of the queue and of the cluster."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from accordion_service.domain.jobs.statuses import Reason
from accordion_service.schemas.jobs import Answer


class Named(Answer):
    """A method or policy that a spec can name, or a task."""

    name: str
    """Name to use in a spec."""
    summary: str
    """What it does, in one sentence."""
    options: dict[str, Any]
    """JSON schema of its options, with a description, default and range for each."""


class TaskView(Named):
    """A task that a spec can name."""

    metrics: list[str] = Field(default=[])
    """Metrics of its evaluation, one of which can be the objective; empty for a script, which
    measures its own.
    """


class TaskList(Answer):
    """Tasks that a spec can name."""

    items: list[TaskView]
    """The tasks."""


class NamedList(Answer):
    """Methods or policies that a spec can name."""

    items: list[Named]
    """The entries."""


class QueueEntry(Answer):
    """One waiting job."""

    position: int
    """Position in the queue; 1 is its head. Jobs whose `start_at` has not come follow all others,
    in the order of that time.
    """
    id: str
    """ID of the job."""
    name: str | None
    """Name of the job; null if you may not see the job."""
    owner: str | None
    """User who submitted it; null for a guest run."""
    priority: int
    """Priority, 0 to 100; larger starts first."""
    reason: Reason
    """Why it waits, as a stable code."""
    message: str
    """Why it waits, in one sentence."""
    waits_for: tuple[str, ...] = ()
    """IDs of the jobs that it waits for: those that hold the capacity or the quota that it lacks,
    or the first one ahead of it that waits for capacity. For a quota, those that you may see; none
    if it needs more than its quota allows.
    """
    remedies: tuple[str, ...] = ()
    """Changes of which each one would let it start, such as `a minimum of 2 workers`, at once or,
    where it says so, when other jobs end; or that it needs none (`no change: it is taking workers
    from job ...`). Empty if only time helps.
    """
    requested_at: datetime | None = None
    """Time of the first request to Ray's autoscaler for this job's nodes; null if none was made."""
    autoscaler: str = ""
    """What was requested from Ray's autoscaler, or why nothing was, in one sentence; empty if the
    cluster has no autoscaler, or if more nodes would not let the job start.
    """
    created_at: datetime
    """Time of submission."""


class QueueView(Answer):
    """The queue."""

    items: list[QueueEntry]
    """Waiting jobs in the order of the queue, then those whose `start_at` has not come."""


class NodeView(Answer):
    """One node of the cluster, as the scheduler last saw it."""

    id: str
    """ID of the node in Ray."""
    name: str
    """Name given to Ray (`ray start --node-name`), or else the address."""
    address: str
    """IP address of the node."""
    alive: bool
    """True if Ray counts the node as alive."""
    cpus: float
    """CPUs of the node, as configured in Ray."""
    gpus: float
    """GPUs of the node, as configured in Ray."""
    memory_bytes: int
    """Memory that Ray can reserve on the node, in bytes."""
    custom: dict[str, float] = Field(default_factory=dict)
    """Ray's custom resources of the node, which `workers.resources` of a job can name."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Ray's labels of the node, which `workers.node_labels` of a job can name."""
    cpus_foreign: float = 0.0
    """CPUs that other programs have reserved in Ray."""
    gpus_foreign: float = 0.0
    """GPUs that other programs have reserved in Ray."""
    memory_bytes_foreign: int = 0
    """Memory that other programs have reserved in Ray, in bytes."""
    custom_foreign: dict[str, float] = Field(default_factory=dict)
    """Custom resources that other programs have reserved in Ray."""
    draining: bool = False
    """True if the node is being drained and accepts no more workers."""
    unschedulable: str = ""
    """Why no more workers are placed on the node although it is alive: it is avoided or cordoned.
    Empty otherwise.
    """


class ClusterView(Answer):
    """The cluster, as the scheduler last saw it."""

    reachable: bool
    """True if the scheduler reached the cluster."""
    message: str
    """Why the cluster is unreachable, or which jobs of other installations also run on it;
    otherwise empty.
    """
    seen_at: datetime | None
    """When the scheduler last looked; null before the first time."""
    cpus: float
    """CPUs of the nodes that are alive and not draining, also of cordoned ones."""
    gpus: float
    """GPUs of these nodes."""
    cpus_reserved: float
    """CPUs reserved by the jobs of this service."""
    gpus_reserved: float
    """GPUs reserved by the jobs of this service."""
    cpus_foreign: float
    """CPUs that other programs have reserved on these nodes."""
    gpus_foreign: float
    """GPUs that other programs have reserved on these nodes."""
    dashboard_url: str | None = None
    """Address of Ray's dashboard as seen from the scheduler; null if there is none. Its page
    `#/actors` shows the worker processes, with their states and logs.
    """
    nodes: list[NodeView]
    """All nodes, including dead and draining ones."""
