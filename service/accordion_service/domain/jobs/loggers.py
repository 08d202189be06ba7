"""States of a job's loggers, and when they are served; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from accordion_service.domain.jobs.status_table import Tone
from accordion_service.domain.jobs.statuses import Status

MAX_DELAY_S = 3600.0
"""Longest time between two attempts of a logger that fails, in seconds; the first one is 10 s, and
each failure doubles it.
"""
GIVE_UP_S = 3 * 86_400.0
"""Seconds since the end of a job after which a logger that still fails is given up."""
_FIRST_DELAY_S = 10.0
_MAX_EXPONENT = 9


class LoggerState(StrEnum):
    """State of a logger."""

    WAITING = "WAITING"
    """Nothing was sent yet: the job has not begun to train, or its first epoch is not finished."""
    SENDING = "SENDING"
    """What the job reported is sent as it arrives."""
    FAILING = "FAILING"
    """The last attempt failed; another one follows, and nothing is lost."""
    DONE = "DONE"
    """The job has ended, and everything is sent."""
    GIVEN_UP = "GIVEN_UP"
    """The job has ended, and no attempt succeeded for days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerTraits:
    """One row of the table."""

    tone: Tone
    is_final: bool = False
    """Whether nothing more is sent, unless the job is retried."""


LOGGER_TABLE: Mapping[LoggerState, LoggerTraits] = {
    LoggerState.WAITING: LoggerTraits(tone="wait"),
    LoggerState.SENDING: LoggerTraits(tone="run"),
    LoggerState.FAILING: LoggerTraits(tone="bad"),
    LoggerState.DONE: LoggerTraits(tone="good", is_final=True),
    LoggerState.GIVEN_UP: LoggerTraits(tone="bad", is_final=True),
}
"""What each state of a logger means: the table that the pages read."""


class RunStatus(StrEnum):
    """How the run of a logger stands."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


_RUN_STATUS: Mapping[Status, RunStatus] = {
    Status.SUCCEEDED: RunStatus.FINISHED,
    Status.FAILED: RunStatus.FAILED,
    Status.CANCELLED: RunStatus.KILLED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPosition:
    """Place of an epoch in the order in which epochs are stored. A repeated epoch is of a newer
    worker group, so it comes after all that were stored before.
    """

    attempt: int = 0
    generation: int = 0
    epoch: int = -1


def run_status_of(status: Status) -> RunStatus:
    """Return the status of a run whose job has this status."""
    return _RUN_STATUS.get(status, RunStatus.RUNNING)


def logger_delay_s(failures: int) -> float:
    """Return the seconds until the next attempt after so many failed ones in a row, at least 1."""
    return min(MAX_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(failures - 1, _MAX_EXPONENT))
