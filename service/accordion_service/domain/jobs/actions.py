"""Actions of the scheduler on one job: a closed set of records, chosen in `reconcile.py`."""

from __future__ import annotations

from dataclasses import dataclass

from accordion_service.domain.jobs.statuses import Reason


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing now: the job waits for capacity, or its supervisor may reappear."""


@dataclass(frozen=True, slots=True)
class Follow:
    """The job runs as ordered: store its reports."""


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Start the attempt that the row announces, again if necessary."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Kill processes that should not run, and look again."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLost:
    """The attempt was lost or never started."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """Return the job to the queue, which counts as no failure: its processes were not placed, or
    the cluster stops.
    """

    message: str
    reason: Reason = Reason.NOT_PLACED


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """Let the workers save, and return the job to the queue, because the cluster stops."""

    message: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The job ended: its end file says so, or it was cancelled and no process is left."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pausing attempt has no process left: the job will resume from its newest checkpoint."""


Action = Wait | Follow | StartAttempt | Remove | MarkLost | Requeue | Interrupt | Finish | Pause
