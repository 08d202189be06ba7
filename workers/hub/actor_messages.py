"""What a job's processes and the Accordion actor say to each other; torch-free, and without the
controller's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from accordion.messages import Decision, LayerInfo, Report
from workers.contract import Cursor, JobSpec, LogLine

_RECORD_BYTES = 100
"""About what the other fields of a log line take when pickled."""


class FencingToken(NamedTuple):
    """Who speaks: a newer token makes the older ones void."""

    attempt: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What rank 0 holds of its job's decisions."""

    spec: JobSpec
    layers: tuple[LayerInfo, ...]
    controller_state: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideRequest:
    """What holds after this report?"""

    report: Report
    number: int
    """How many reports the job has made, this one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideResponse:
    """The answer to a request."""

    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRegistered:
    """The actor is not where the job is: register, and ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """A newer group runs the job: nothing of the caller's is taken."""

    newest: FencingToken


@dataclass(frozen=True, slots=True, kw_only=True)
class PostResponse:
    """The records are held, unless they were meant for another incarnation."""

    confirmed: Cursor
    """The newest record that the database holds: what lies up to it need not be sent again."""
    incarnation: str
    """Another one than before says that all records held so far were lost: send them again."""
    pause_s: float = 0.0
    """Seconds until the caller should post again; grows with the number of jobs."""
    namesake: str | None = None
    """Id of an older guest run that is alive and has the same name; None without one."""


def estimate_line_bytes(line: LogLine) -> int:
    """What a log line weighs: its text, and beside it the record, so that empty lines are not held
    without end.
    """
    return len(line.text.encode()) + _RECORD_BYTES
