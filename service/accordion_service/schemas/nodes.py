"""Request and response models of the nodes of the cluster."""

from __future__ import annotations

from datetime import datetime

from pydantic import ConfigDict, Field

from accordion_service.domain.capacity.nodes import NodeState
from accordion_service.schemas.jobs import Answer, Request


class CordonRequest(Request):
    """Why a node is cordoned."""

    reason: str = Field(default="", max_length=500)
    """Reason, shown to users whose jobs wait for the node. Default: empty."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "new GPUs"}, {}]})


class NodeFailureView(Answer):
    """A failure of a job that may be the fault of a node."""

    time: datetime
    """When it happened."""
    job_id: str
    """ID of the job, which may have been deleted."""
    owner: str | None
    """User who submitted the job; null if it was deleted."""
    attempt: int
    """Attempt of the job."""
    reason: str | None
    """What happened, in one sentence; null if you may not see the job, empty if it was deleted."""


class NodeStatus(Answer):
    """One node of the cluster by name, and whether workers are placed on it."""

    name: str
    """Name given to Ray (`ray start --node-name`), or else the address. It stays when Ray restarts
    on the node.
    """
    address: str | None
    """IP address; null if the cluster does not have the node."""
    alive: bool
    """True if Ray counts the node as alive."""
    draining: bool
    """True if the node is being drained and accepts no more workers."""
    cpus: float
    """CPUs of the node, as configured in Ray."""
    gpus: float
    """GPUs of the node, as configured in Ray."""
    memory_bytes: int
    """Memory that Ray can reserve on the node, in bytes."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Ray's labels of the node."""
    state: NodeState
    """Whether workers are placed on the node while it is alive."""
    message: str
    """Why no workers are placed on the node, or why some still are, and how to change that; empty
    for `AVAILABLE`.
    """
    reason: str
    """Why the node is avoided, or the reason that was given when it was cordoned; may be empty."""
    until: datetime | None
    """When a node that is avoided takes workers again; null for any other node."""
    by: str | None
    """User who cordoned the node; null for any other node, also for one that the scheduler avoids.
    """
    num_failures: int
    """Number of failures of the last 24 hours that may be the fault of the node."""
    failures: list[NodeFailureView]
    """The newest 20 of these failures, the newest first."""


class NodeList(Answer):
    """Nodes of the cluster."""

    items: list[NodeStatus]
    """Nodes by name: those that are alive, and others that failed lately, or are avoided or
    cordoned.
    """
