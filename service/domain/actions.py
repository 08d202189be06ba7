"""What the scheduler may do about one job: a closed set of records, decided in `reconcile.py`."""

from __future__ import annotations

from dataclasses import dataclass

from service.domain.jobs import Reason


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing now: the job waits for room, or its supervisor may come back into sight."""


@dataclass(frozen=True, slots=True)
class Follow:
    """All is as it should be: take over what it reports."""


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """The row says that it starts, and nothing does: start it, again if need be."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Something runs that should not: end it by force, and look again."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLost:
    """The attempt is gone, or never came to life."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """Return the job to the queue: its processes were not placed, which counts as no failure."""

    message: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The job ended: as its end file says, or without one, since it was to be cancelled and nothing
    of it is left.
    """


@dataclass(frozen=True, slots=True)
class Pause:
    """The attempt was to pause and nothing of it is left: the job goes on from its newest
    checkpoint.
    """


Action = Wait | Follow | StartAttempt | Remove | MarkLost | Requeue | Finish | Pause
