"""What each status of a job means and which may follow it: the table that the scheduler, the pages,
the command line, the alerts and the Grafana dashboard read; pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from accordion_service.domain.jobs.statuses import Status

Tone = Literal["run", "wait", "idle", "good", "bad"]
"""How a status is shown; `bad` needs attention. The pages have a colour for each tone."""


class Phase(StrEnum):
    """Statuses that the service treats alike."""

    HELD = "held"
    """Nothing of the job is to run."""
    STARTING = "starting"
    TRAINING = "training"
    """Workers train, or are being replaced."""
    LEAVING = "leaving"
    """The attempt saves and ends; what its workers do until then does not change the status."""
    LOST = "lost"
    """The workers run elsewhere and do not report."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusTraits:
    """One row of the table."""

    phase: Phase
    tone: Tone
    is_for_guests: bool = False
    """Whether guest runs have this status too."""

    @property
    def is_active(self) -> bool:
        """Whether workers are allocated to the job."""
        return self.phase in {Phase.STARTING, Phase.TRAINING, Phase.LEAVING}


STATUS_TABLE: Mapping[Status, StatusTraits] = {
    Status.QUEUED: StatusTraits(phase=Phase.HELD, tone="wait"),
    Status.STARTING: StatusTraits(phase=Phase.STARTING, tone="wait"),
    Status.RUNNING: StatusTraits(phase=Phase.TRAINING, tone="run", is_for_guests=True),
    Status.RESIZING: StatusTraits(phase=Phase.TRAINING, tone="wait", is_for_guests=True),
    Status.RECOVERING: StatusTraits(phase=Phase.TRAINING, tone="wait", is_for_guests=True),
    Status.PAUSING: StatusTraits(phase=Phase.LEAVING, tone="wait"),
    Status.PAUSED: StatusTraits(phase=Phase.HELD, tone="idle"),
    Status.STOPPING: StatusTraits(phase=Phase.LEAVING, tone="wait"),
    Status.LOST: StatusTraits(phase=Phase.LOST, tone="bad", is_for_guests=True),
    Status.SUCCEEDED: StatusTraits(phase=Phase.ENDED, tone="good", is_for_guests=True),
    Status.FAILED: StatusTraits(phase=Phase.ENDED, tone="bad", is_for_guests=True),
    Status.CANCELLED: StatusTraits(phase=Phase.ENDED, tone="idle", is_for_guests=True),
}


def _in_phase(phase: Phase) -> frozenset[Status]:
    return frozenset(status for status, traits in STATUS_TABLE.items() if traits.phase is phase)


ENDED = _in_phase(Phase.ENDED)
HELD = _in_phase(Phase.HELD)
LEAVING = _in_phase(Phase.LEAVING)
UNFINISHED = tuple(status for status in STATUS_TABLE if status not in ENDED)

_EXITS = ENDED | LEAVING | {Status.QUEUED}
"""Statuses that can follow at any time while an attempt runs: it ends, is asked to, or is lost."""
ALLOWED_TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.STARTING, Status.PAUSED, Status.CANCELLED, Status.FAILED}),
    Status.STARTING: frozenset({Status.RUNNING, Status.RECOVERING}) | _EXITS,
    Status.RUNNING: frozenset({Status.RESIZING, Status.RECOVERING, Status.LOST}) | _EXITS,
    Status.RESIZING: frozenset({Status.RUNNING, Status.RECOVERING, Status.LOST}) | _EXITS,
    Status.RECOVERING: frozenset({Status.RUNNING, Status.LOST}) | _EXITS,
    Status.LOST: frozenset({Status.RUNNING}) | ENDED,
    Status.PAUSING: frozenset({Status.PAUSED, Status.QUEUED, Status.STOPPING}) | ENDED,
    Status.PAUSED: frozenset({Status.QUEUED, Status.CANCELLED, Status.FAILED}),
    Status.STOPPING: ENDED,
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset({Status.QUEUED}),
    Status.CANCELLED: frozenset({Status.QUEUED}),
}
"""Statuses that may follow each status; an ended one is left only if a user retries the job.
`change_status` in `store/writes/status_changes.py` enforces the table.
"""


def is_transition_allowed(old: Status, new: Status) -> bool:
    """Return whether `new` may follow `old`."""
    return new in ALLOWED_TRANSITIONS[old]
