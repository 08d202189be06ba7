"""Requests to the Accordion actor and its responses; loads neither torch nor the controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from accordion.base.messages import Decision, LayerInfo, Report
from accordion_workers.records.contract import Cursor, JobSpec, LogLine

_RECORD_BYTES = 100
"""Estimated size of the other fields of a pickled log line."""


class FencingToken(NamedTuple):
    """Identity of a caller; a newer token fences off all older ones."""

    attempt: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Rank 0's controller state, to be held by the actor."""

    spec: JobSpec
    layers: tuple[LayerInfo, ...]
    controller_state: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideRequest:
    """Request for the decision that follows a report."""

    report: Report
    number: int
    """Number of reports of the job, including this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideResponse:
    """Decision in force after the report."""

    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRegistered:
    """The actor's controller does not match the job: register, then repeat the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """The call was rejected because a newer group runs the job."""

    newest: FencingToken


@dataclass(frozen=True, slots=True, kw_only=True)
class PostResponse:
    """The actor holds the records unless they continue those of another incarnation."""

    confirmed: Cursor
    """Newest record that the database holds; records up to it need not be sent again."""
    incarnation: str
    """Id of the actor's memory. A new id means that all records were lost: send them again."""
    pause_s: float = 0.0
    """Seconds until the caller should post again; grows with the number of jobs."""
    namesake: str | None = None
    """Id of an older guest run that is alive and has the same name; None without one."""


def estimate_line_bytes(line: LogLine) -> int:
    """Return the size of a log line with its record, so that empty lines count too."""
    return len(line.text.encode()) + _RECORD_BYTES
