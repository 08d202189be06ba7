"""Kinds, statuses, desired states and reasons of a job; pure.

`ALLOWED_TRANSITIONS` in `status_table.py` says which status may follow which, and `change_status`
in `store/writes/status_changes.py` enforces it.
"""

from __future__ import annotations

from enum import StrEnum

ID_PREFIX = r"^[0-9a-f-]{1,36}$"
"""Starts of the IDs of jobs."""


class Kind(StrEnum):
    """How a training run reached this service."""

    JOB = "job"
    """Submitted to this service, which starts, places and resizes it."""
    GUEST = "guest"
    """A Ray Train script that registered itself: followed and overridden here, started and stopped
    elsewhere.
    """


class Status(StrEnum):
    """State of a job.

    - `QUEUED`: waits for capacity.
    - `STARTING`: capacity is reserved, and the workers start.
    - `RUNNING`: the workers train.
    - `RESIZING`: the workers stop at a step boundary, to continue with another number of workers.
    - `RECOVERING`: a worker group failed or was lost; another continues from the newest checkpoint.
    - `PAUSING`: the workers save a checkpoint; then the job is paused, or queued if it was resumed.
    - `PAUSED`: has no workers; once resumed, continues from its newest checkpoint if it has one.
    - `STOPPING`: cancelled, or at a time limit; the workers save a checkpoint and stop.
    - `LOST`: a guest run without a heartbeat for a while; RUNNING again with the next one.
    - `SUCCEEDED`, `FAILED`, `CANCELLED`: ended.
    """

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESIZING = "RESIZING"
    RECOVERING = "RECOVERING"
    PAUSING = "PAUSING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    LOST = "LOST"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Desired(StrEnum):
    """What users want of a job."""

    RUN = "RUN"
    PAUSE = "PAUSE"
    CANCEL = "CANCEL"


class Reason(StrEnum):
    """Reason for the state of a job.

    - `SUBMITTED`: new; the scheduler has not looked at it yet.
    - `SCHEDULED`: its spec names a later time (`start_at`) at which it is queued.
    - `WAITING_FOR_ROOM`: the smallest worker group fits the cluster, but not beside what runs
      now.
    - `WAITING_FOR_NODE`: the smallest worker group fits only with nodes that are cordoned or
      avoided, or on which its workers could not start a moment ago.
    - `WAITING_FOR_QUOTA`: the jobs of its owner, or with one of its labels, hold all that their
      quota allows.
    - `WAITING_FOR_SECRET`: a secret that its variables refer to cannot be decrypted; it starts once
      the secret is set again, or the key is back.
    - `NEVER_FITS`: the smallest worker group is larger than the cluster as it is.
    - `ADMITTED`: capacity is reserved for the next attempt.
    - `TRAINING`: the workers train.
    - `WAITING_FOR_STORAGE`: the workers, the start of the job, or its supervisor wait until the
      storage of the job can be read and written, and has what the job saved.
    - `WORKERS_LOST`: worker processes or their node died.
    - `RETRYING`: a worker failed; the next group continues from the newest checkpoint.
    - `RESIZE_ORDERED`: a user or the scheduler requested another number of workers.
    - `WORKERS_JOINED`: missing worker processes have joined.
    - `WORKERS_LEAVING`: a node is being drained.
    - `START_TIMED_OUT`: the attempt did not train within the start limit.
    - `NOT_PLACED`: its processes were not placed on the cluster; it waits again, which is no
      failure.
    - `CLUSTER_UNREACHABLE`: the cluster has no live node or does not respond.
    - `PREEMPTED`: a more important job needs the capacity; it is saved, and queued again.
    - `SERVICE_STOPPED`: the service was stopped with its cluster; the workers save, and the job
      continues at the next start.
    - `PAUSE_REQUESTED`: a user paused the job; the workers save a checkpoint.
    - `PAUSED_BY_USER`: paused.
    - `RESUMED`: a user resumed the job.
    - `RETRIED`: a user retried a job that had failed or was cancelled.
    - `CANCEL_REQUESTED`: a user cancelled the job; the workers save a checkpoint.
    - `COMPLETED`: all epochs are trained, or the script ended by itself.
    - `STOPPED_IMPROVING`: training ended early because the metric of its objective stopped
      improving.
    - `CANCELLED_BY_USER`: cancelled.
    - `TASK_RAISED`: the task or script raised an exception.
    - `LOSS_NOT_FINITE`: the loss was infinite or no number.
    - `TOO_MANY_FAILURES`: the workers failed more often than `max_failures` allows.
    - `TIMED_OUT`: it has reached a time limit of its spec; its workers save a checkpoint, and it
      fails.
    - `NO_PROGRESS`: several worker groups failed without a new checkpoint or epoch.
    - `START_FAILED`: attempts did not start, or the stored spec cannot be used.
    - `LOST`: attempts or the guest run were lost.
    - `REGISTERED`: a guest run is known, and its first worker group has not reported yet.
    - `NO_STEPS`: a guest run is alive but has made no step for a while: it evaluates, saves,
      compiles or hangs.
    """

    SUBMITTED = "SUBMITTED"
    SCHEDULED = "SCHEDULED"
    WAITING_FOR_ROOM = "WAITING_FOR_ROOM"
    WAITING_FOR_NODE = "WAITING_FOR_NODE"
    WAITING_FOR_QUOTA = "WAITING_FOR_QUOTA"
    WAITING_FOR_SECRET = "WAITING_FOR_SECRET"  # noqa: S105 - a name
    NEVER_FITS = "NEVER_FITS"
    ADMITTED = "ADMITTED"
    TRAINING = "TRAINING"
    WAITING_FOR_STORAGE = "WAITING_FOR_STORAGE"
    WORKERS_LOST = "WORKERS_LOST"
    RETRYING = "RETRYING"
    RESIZE_ORDERED = "RESIZE_ORDERED"
    WORKERS_JOINED = "WORKERS_JOINED"
    WORKERS_LEAVING = "WORKERS_LEAVING"
    START_TIMED_OUT = "START_TIMED_OUT"
    NOT_PLACED = "NOT_PLACED"
    CLUSTER_UNREACHABLE = "CLUSTER_UNREACHABLE"
    PREEMPTED = "PREEMPTED"
    SERVICE_STOPPED = "SERVICE_STOPPED"
    PAUSE_REQUESTED = "PAUSE_REQUESTED"
    PAUSED_BY_USER = "PAUSED_BY_USER"
    RESUMED = "RESUMED"
    RETRIED = "RETRIED"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    COMPLETED = "COMPLETED"
    STOPPED_IMPROVING = "STOPPED_IMPROVING"
    CANCELLED_BY_USER = "CANCELLED_BY_USER"
    TASK_RAISED = "TASK_RAISED"
    LOSS_NOT_FINITE = "LOSS_NOT_FINITE"
    TOO_MANY_FAILURES = "TOO_MANY_FAILURES"
    TIMED_OUT = "TIMED_OUT"
    NO_PROGRESS = "NO_PROGRESS"
    START_FAILED = "START_FAILED"
    LOST = "LOST"
    REGISTERED = "REGISTERED"
    NO_STEPS = "NO_STEPS"
