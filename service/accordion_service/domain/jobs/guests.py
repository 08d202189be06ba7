"""Decides what to do about a guest run, from its state and time of silence; pure."""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass

from accordion_service.domain.jobs.actions import Follow
from accordion_service.domain.jobs.statuses import Reason, Status

_ID_CHARS = 6
_MAX_NAME = 63 - _ID_CHARS - 1
"""Characters of a guest's own name where part of its id is appended; names have at most 63."""


@dataclass(frozen=True, slots=True)
class MarkGuestLost:
    """Set the run to LOST: it gave no heartbeat for too long."""

    message: str


@dataclass(frozen=True, slots=True)
class MarkGuestStalled:
    """Show that the run is alive and has made no step for a while."""


@dataclass(frozen=True, slots=True)
class CloseGuest:
    """End the run as FAILED: it has been LOST for too long."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceLimits:
    """How long a guest run may be silent."""

    lost_s: float
    """Seconds without a heartbeat until it is LOST, and without a step until that is shown."""
    closed_s: float
    """Seconds without a heartbeat until it is FAILED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedGuest:
    """What is known of a guest run that has not ended."""

    status: Status
    reason: Reason
    silent_s: float
    """Seconds without a heartbeat; 0 when this scheduler first looks at the run."""
    idle_s: float
    """Seconds without a report; 0 when this scheduler first looks at the run."""
    is_overdue: bool
    """Whether it has been LOST for too long."""


def next_guest_action(
    seen: ObservedGuest, limits: SilenceLimits
) -> Follow | MarkGuestLost | MarkGuestStalled | CloseGuest:
    """Decide what to do about a guest run that has not ended."""
    is_silent = seen.silent_s >= limits.lost_s
    if seen.status is Status.LOST:
        # A scheduler that was away when the time ran out first looks for a heartbeat.
        return CloseGuest(_describe_close(limits)) if seen.is_overdue and is_silent else Follow()
    if is_silent:
        return MarkGuestLost(_describe_loss(limits))
    is_stalled = seen.status is Status.RUNNING and seen.idle_s >= limits.lost_s
    return MarkGuestStalled() if is_stalled and seen.reason is not Reason.NO_STEPS else Follow()


def _describe_loss(limits: SilenceLimits) -> str:
    return (
        f"no heartbeat for {limits.lost_s:g} s (ACCORDION_GUEST_LOST_S); look where its script "
        "was started: it is RUNNING again with its next heartbeat. If it is gone, cancel it to "
        "close it now"
    )


def _describe_close(limits: SilenceLimits) -> str:
    return (
        f"no heartbeat for {limits.closed_s:g} s (ACCORDION_GUEST_CLOSED_S), so it counts as "
        "failed; if its script still runs, training continues but is no longer shown"
    )


def name_guest(name: str, job_id: str, taken: Collection[str]) -> str:
    """Return the name to show; append part of the id if an unfinished run has the same name."""
    return f"{name[:_MAX_NAME]}-{job_id[-_ID_CHARS:]}" if name in taken else name


class SilenceTimer:
    """Measures how long each guest run is silent, over turns in which the cluster answered for it.

    Time in which the scheduler or the cluster was away does not count.

    Args:
        longest_turn_s: a longer gap between two turns does not count: the scheduler was away.
    """

    def __init__(self, longest_turn_s: float) -> None:
        self._longest_turn_s = longest_turn_s
        self._silent_s: dict[str, float] = {}
        self._answered_at: dict[str, float] = {}
        """Time of the last turn, for runs that the cluster answered for in that turn; monotonic."""

    def update(self, job_id: str, *, responded: bool, at_most_s: float | None, now: float) -> float:
        """Count one turn and return the seconds of silence so far.

        Args:
            job_id: id of the guest run.
            responded: whether the cluster answered for it.
            at_most_s: how long ago the cluster last heard of it; 0 with news, None if not known.
            now: monotonic clock.
        """
        before = self._answered_at.pop(job_id, None)
        silent_s = self._silent_s.get(job_id, 0.0)
        if responded:
            self._answered_at[job_id] = now
            passed = now - before if before is not None else 0.0
            silent_s += passed if 0 <= passed <= self._longest_turn_s else 0.0
        if at_most_s is not None:
            silent_s = min(silent_s, at_most_s)
        self._silent_s[job_id] = silent_s
        return silent_s

    def keep_only(self, job_ids: Container[str]) -> None:
        """Drop what is counted of all other runs."""
        for counts in (self._silent_s, self._answered_at):
            for job_id in [job_id for job_id in counts if job_id not in job_ids]:
                del counts[job_id]
