"""States of a job and the table of allowed steps; pure."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """How a training run reached this service."""

    JOB = "job"
    """Submitted to this service, which starts, places and resizes it."""
    GUEST = "guest"
    """A Ray Train script that registered itself: followed and overridden here, started and stopped
    elsewhere.
    """


class Status(StrEnum):
    """State of a job."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESIZING = "RESIZING"
    """The group stops at a step boundary, to continue with another number of workers."""
    RECOVERING = "RECOVERING"
    """A worker group was lost; the next one continues from the newest checkpoint."""
    PAUSING = "PAUSING"
    PAUSED = "PAUSED"
    """Saved, without workers, until a user resumes it."""
    STOPPING = "STOPPING"
    LOST = "LOST"
    """A guest run without a sign of life for a while; it is RUNNING again with the next one."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Desired(StrEnum):
    """What users want of a job."""

    RUN = "RUN"
    PAUSE = "PAUSE"
    CANCEL = "CANCEL"


class Reason(StrEnum):
    """Reason for the state of a job."""

    SUBMITTED = "SUBMITTED"
    WAITING_FOR_ROOM = "WAITING_FOR_ROOM"
    """The minimum worker group fits the cluster, but not beside what runs now."""
    NEVER_FITS = "NEVER_FITS"
    """The minimum worker group is larger than the cluster as it is."""
    ADMITTED = "ADMITTED"
    TRAINING = "TRAINING"
    WAITING_FOR_STORAGE = "WAITING_FOR_STORAGE"
    """Its workers cannot read or write its checkpoints now; they wait, and nothing is lost."""
    WORKERS_LOST = "WORKERS_LOST"
    RETRYING = "RETRYING"
    RESIZE_ORDERED = "RESIZE_ORDERED"
    """A user or the scheduler requested another number of workers."""
    WORKERS_JOINED = "WORKERS_JOINED"
    """Missing worker processes have joined."""
    WORKERS_LEAVING = "WORKERS_LEAVING"
    """A node is being drained."""
    START_TIMED_OUT = "START_TIMED_OUT"
    NOT_PLACED = "NOT_PLACED"
    """Its processes were not placed on the cluster; it waits again. This does not count as a
    failure.
    """
    CLUSTER_UNREACHABLE = "CLUSTER_UNREACHABLE"
    PAUSE_REQUESTED = "PAUSE_REQUESTED"
    PAUSED_BY_USER = "PAUSED_BY_USER"
    RESUMED = "RESUMED"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    COMPLETED = "COMPLETED"
    CANCELLED_BY_USER = "CANCELLED_BY_USER"
    TASK_RAISED = "TASK_RAISED"
    LOSS_NOT_FINITE = "LOSS_NOT_FINITE"
    TOO_MANY_FAILURES = "TOO_MANY_FAILURES"
    NO_PROGRESS = "NO_PROGRESS"
    """Several worker groups in a row failed without a new checkpoint or epoch."""
    START_FAILED = "START_FAILED"
    LOST = "LOST"
    REGISTERED = "REGISTERED"
    """A guest run is known, and its first worker group has not reported yet."""
    NO_STEPS = "NO_STEPS"
    """The process of a guest run is alive and has made no step for a while: it evaluates, saves,
    compiles or hangs.
    """


ENDED = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})

HELD = frozenset({Status.QUEUED, Status.PAUSED})
"""States without a running process of the job."""
LEAVING = frozenset({Status.STOPPING, Status.PAUSING})
"""States in which the attempt saves and ends; reports of its workers change no state."""
_LEFT = ENDED | LEAVING | {Status.QUEUED}
"""States that an attempt may reach at any time: it ends, must end, or is lost."""

STEPS: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.STARTING, Status.PAUSED, Status.CANCELLED, Status.FAILED}),
    Status.STARTING: frozenset({Status.RUNNING, Status.RECOVERING}) | _LEFT,
    Status.RUNNING: frozenset({Status.RESIZING, Status.RECOVERING, Status.LOST}) | _LEFT,
    Status.RESIZING: frozenset({Status.RUNNING, Status.RECOVERING}) | _LEFT,
    Status.RECOVERING: frozenset({Status.RUNNING, Status.LOST}) | _LEFT,
    Status.LOST: frozenset({Status.RUNNING}) | ENDED,
    Status.PAUSING: frozenset({Status.PAUSED, Status.QUEUED, Status.STOPPING}) | ENDED,
    Status.PAUSED: frozenset({Status.QUEUED, Status.CANCELLED}),
    Status.STOPPING: ENDED,
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELLED: frozenset(),
}


def is_transition_allowed(old: Status, new: Status) -> bool:
    """Return whether a job may change from one state to the other in one step."""
    return new in STEPS[old]
