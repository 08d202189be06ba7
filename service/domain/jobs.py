"""Kinds, statuses, desired states and reasons of a job; pure.

`ALLOWED_TRANSITIONS` in `job_status.py` says which status may follow which, and `change_status` in
`store/status_changes.py` enforces it.
"""

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
    """A guest run without a heartbeat for a while; it is RUNNING again with the next one."""
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
