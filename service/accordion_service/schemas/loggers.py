"""Response models of a job's loggers."""

from __future__ import annotations

from datetime import datetime

from accordion_service.domain.jobs.loggers import LoggerState
from accordion_service.schemas.jobs import Answer


class LoggerView(Answer):
    """One logger of a job."""

    number: int
    """Position in `loggers` of the spec, counted from 0."""
    kind: str
    """Kind of the logger, such as `mlflow`."""
    state: LoggerState
    """`WAITING`: nothing was sent yet. `SENDING`: epochs are sent as they end. `FAILING`: the last
    attempt failed, and another one follows. `DONE`: the job has ended, and everything is sent.
    `GIVEN_UP`: the job has ended, and attempts failed for three days since.
    """
    location: str
    """URL of the run, or path of its files on the machine of the service; empty before it is known.
    """
    message: str
    """Why the last attempt failed; empty if it did not."""
    failures: int
    """Failed attempts in a row."""
    next_epoch: int
    """Epoch after the newest one that was sent."""
    sent_at: datetime | None
    """Time at which the logger was last served without a failure; null before."""


class LoggerList(Answer):
    """All loggers of a job."""

    items: list[LoggerView]
    """The loggers, in the order of the spec."""
