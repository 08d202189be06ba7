"""What a spec can name, the queue, and the cluster: answers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from service.api.schemas import Answer
from service.domain.jobs import Reason


class Named(Answer):
    """Something a spec can name, with the JSON schema of its options."""

    name: str
    summary: str
    options: dict[str, Any]


class NamedList(Answer):
    """What a spec can name."""

    items: list[Named]


class QueueEntry(Answer):
    """One waiting job: who is next, and why it waits."""

    position: int
    id: str
    name: str
    priority: int
    reason: Reason
    message: str
    created_at: datetime


class QueueView(Answer):
    """Waiting jobs in the order in which they will start."""

    items: list[QueueEntry]


class NodeView(Answer):
    """One machine of the cluster, as the scheduler last saw it."""

    id: str
    address: str
    alive: bool
    cpus: float
    gpus: float
    memory_bytes: int
    cpus_foreign: float = 0.0
    """CPUs that programs other than the jobs of this service use."""
    gpus_foreign: float = 0.0
    """GPUs that programs other than the jobs of this service use."""
    draining: bool = False
    """It is about to go and takes no more workers."""


class ClusterView(Answer):
    """The cluster, as the scheduler last saw it."""

    reachable: bool
    message: str
    """Why the cluster is unreachable, or which jobs of other installations also run there; empty if
    none.
    """
    seen_at: datetime | None
    cpus: float
    """CPUs of the schedulable nodes (alive, not draining)."""
    gpus: float
    cpus_reserved: float
    """CPUs reserved by this service's jobs."""
    gpus_reserved: float
    cpus_foreign: float
    """CPUs that other programs use on the nodes that take workers."""
    gpus_foreign: float
    """GPUs that other programs use on the nodes that take workers."""
    dashboard_url: str | None = None
    """Address of Ray's dashboard as the scheduler reaches it; null if none answers. Its page
    `#/actors` shows the worker processes, with their states and logs.
    """
    nodes: list[NodeView]
