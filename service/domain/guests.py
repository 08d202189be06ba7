"""What to do about a guest run, from its state and how long it has been silent; pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from service.domain.actions import Follow
from service.domain.jobs import Status

_ID_CHARS = 6
_MAX_NAME = 63 - _ID_CHARS - 1
"""Characters of a guest's own name where part of its id is appended; names have at most 63."""


@dataclass(frozen=True, slots=True)
class MarkLost:
    """The run has been silent for too long: show that."""

    message: str


@dataclass(frozen=True, slots=True)
class Close:
    """The run has been lost for so long that it counts as over."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceLimits:
    """How long a guest run may be silent."""

    lost_s: float
    """Seconds until it is shown as lost."""
    closed_s: float
    """Seconds until it counts as over."""


def next_guest_action(status: Status, silent_s: float, limits: SilenceLimits) -> Follow | MarkLost | Close:
    """Decide what to do about a guest run that has not ended and has been silent for `silent_s` seconds."""
    if status is Status.LOST and silent_s >= limits.closed_s:
        return Close(
            f"it has not reported for {limits.closed_s:g} s (ACCORDION_GUEST_CLOSED_S), and counts as failed; "
            "its script may still run"
        )
    if status is not Status.LOST and silent_s >= limits.lost_s:
        return MarkLost(
            f"it has not reported for {limits.lost_s:g} s (ACCORDION_GUEST_LOST_S); look where its script was "
            "started: it is RUNNING again as soon as it reports"
        )
    return Follow()


def name_guest(name: str, job_id: str, taken: Collection[str]) -> str:
    """Return the name under which a guest run is shown; a name that an unfinished run has gets part of the id."""
    return f"{name[:_MAX_NAME]}-{job_id[-_ID_CHARS:]}" if name in taken else name


class Silence:
    """Counts how long each guest run has been silent, in turns in which the cluster answered for it.

    Time in which nobody listened (the scheduler or the cluster was away) does not count.

    Args:
        longest_turn_s: a longer gap between two turns means that the scheduler was away, and does not count.
    """

    def __init__(self, longest_turn_s: float) -> None:
        self._longest_turn_s = longest_turn_s
        self._silent_s: dict[str, float] = {}
        self._answered_at: dict[str, float] = {}
        """Time of the last turn, for runs that the cluster answered for in that turn; monotonic."""

    def note_turn(self, job_id: str, *, answered: bool, heard: bool, now: float) -> float:
        """Count one turn and return the seconds of silence so far; `now` is monotonic."""
        before = self._answered_at.pop(job_id, None)
        if answered:
            self._answered_at[job_id] = now
        if heard:
            self._silent_s[job_id] = 0.0
        elif answered and before is not None:
            passed = now - before
            counted = passed if 0 <= passed <= self._longest_turn_s else 0.0
            self._silent_s[job_id] = self._silent_s.get(job_id, 0.0) + counted
        return self._silent_s.get(job_id, 0.0)

    def forget(self, job_id: str) -> None:
        """Drop the counts of a run that is over."""
        self._silent_s.pop(job_id, None)
        self._answered_at.pop(job_id, None)
