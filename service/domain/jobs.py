"""States of a job and the table of allowed steps; pure."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Where a job is."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Desired(StrEnum):
    """What people want of a job."""

    RUN = "RUN"
    CANCEL = "CANCEL"


class Reason(StrEnum):
    """Why a job is where it is."""

    SUBMITTED = "SUBMITTED"
    WAITING_FOR_ROOM = "WAITING_FOR_ROOM"
    """The minimum worker group fits the cluster, but not beside what runs now."""
    NEVER_FITS = "NEVER_FITS"
    """The minimum worker group is larger than the cluster as it is."""
    ADMITTED = "ADMITTED"
    TRAINING = "TRAINING"
    WORKERS_LOST = "WORKERS_LOST"
    RETRYING = "RETRYING"
    START_TIMED_OUT = "START_TIMED_OUT"
    CLUSTER_UNREACHABLE = "CLUSTER_UNREACHABLE"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    COMPLETED = "COMPLETED"
    CANCELLED_BY_USER = "CANCELLED_BY_USER"
    TASK_RAISED = "TASK_RAISED"
    LOSS_NOT_FINITE = "LOSS_NOT_FINITE"
    TOO_MANY_FAILURES = "TOO_MANY_FAILURES"
    START_FAILED = "START_FAILED"
    LOST = "LOST"


ENDED = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})

STEPS: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.STARTING, Status.CANCELLED, Status.FAILED}),
    Status.STARTING: frozenset({Status.RUNNING, Status.QUEUED, Status.STOPPING, Status.RECOVERING}) | ENDED,
    Status.RUNNING: frozenset({Status.RECOVERING, Status.STOPPING, Status.QUEUED}) | ENDED,
    Status.RECOVERING: frozenset({Status.RUNNING, Status.STOPPING, Status.QUEUED}) | ENDED,
    Status.STOPPING: ENDED,
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELLED: frozenset(),
}


def may_step(old: Status, new: Status) -> bool:
    """Whether a job may go from one state to the other in one step."""
    return new in STEPS[old]
