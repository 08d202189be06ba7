"""Decides what to do about one job, from its row and the observed processes; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from accordion_service.domain.jobs.actions import (
    Action,
    Finish,
    Follow,
    Interrupt,
    MarkLost,
    Pause,
    Remove,
    Requeue,
    StartAttempt,
    Wait,
)
from accordion_service.domain.jobs.status_table import HELD, LEAVING
from accordion_service.domain.jobs.statuses import Reason, Status

_STOPPED = "the service was stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedJob:
    """State of a job from its row."""

    status: Status
    attempt: int
    deadline: float | None
    """When a start counts as failed, or a stop is forced; seconds on the clock of `now`."""
    is_paused_by_user: bool = False
    is_missing: bool = False
    """No process of it has been seen in the cluster for longer than a restart takes."""
    unplaceable: bool = False
    """Whether, for a while, it is starting and its minimum does not fit beside the running
    processes, or it has no worker group and its minimum fits only on unschedulable nodes.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSupervisor:
    """Processes of the job in the cluster."""

    attempt: int
    phase: Literal["starting", "resolving", "running", "waiting", "ended"]
    unplaced: int = 0
    """Number of processes that its minimum requires and that have no node yet."""


def next_action(
    seen: ObservedJob, supervisor: ObservedSupervisor | None, *, has_ended: bool, now: float
) -> Action:
    """Choose the action. `has_ended` checks for an end file; called only if no process runs."""
    if seen.status in HELD:
        return Remove(f"the job is {seen.status}") if supervisor else Wait()
    if has_ended:
        return Finish()
    if supervisor is None:
        return _without_supervisor(seen, now)
    if supervisor.attempt != seen.attempt:
        return Remove(f"it is attempt {supervisor.attempt}, the job is at attempt {seen.attempt}")
    return _with_supervisor(seen, supervisor, now)


def action_at_stop(seen: ObservedJob, usual: Action, *, is_over: bool) -> Action:
    """Choose the action on a job whose cluster stops; `is_over`: its workers had their time to
    save. Held jobs, and attempts that end, are treated as usual.
    """
    if seen.status in HELD or not isinstance(usual, Wait | Follow | StartAttempt):
        return usual
    if seen.status is Status.STARTING:
        return _requeue_at_stop(f"{_STOPPED} before attempt {seen.attempt} trained")
    if not is_over:
        return usual if seen.status in LEAVING else Interrupt(message=_STOPPED)
    if seen.status is Status.STOPPING:
        return Finish()
    if seen.is_paused_by_user:
        return Pause()
    return _requeue_at_stop(
        f"{_STOPPED} before attempt {seen.attempt} had saved; the steps since its newest"
        " checkpoint are trained again"
    )


def _requeue_at_stop(message: str) -> Requeue:
    return Requeue(message=message, reason=Reason.SERVICE_STOPPED)


def _without_supervisor(seen: ObservedJob, now: float) -> Action:
    if seen.status is Status.STARTING:
        return _lost_by_timeout(seen) if _is_over(seen, now) else StartAttempt()
    if not seen.is_missing:
        return Wait()
    if seen.status is Status.STOPPING:
        return Finish()
    if seen.status is Status.PAUSING:
        return Pause()
    message = f"attempt {seen.attempt} is gone with its machines"
    return MarkLost(reason=Reason.WORKERS_LOST, message=message)


def _with_supervisor(seen: ObservedJob, supervisor: ObservedSupervisor, now: float) -> Action:
    is_over = _is_over(seen, now)
    is_late = is_over and seen.status is Status.STARTING
    is_unplaceable = seen.unplaceable and seen.status in {Status.STARTING, Status.RECOVERING}
    if supervisor.unplaced and (is_late or is_unplaceable):
        few = f"{supervisor.unplaced} worker process{'es' if supervisor.unplaced > 1 else ''}"
        return Requeue(message=f"the cluster had no capacity for {few} of attempt {seen.attempt}")
    if not is_over:
        return Follow()
    if seen.status in LEAVING:
        return Remove("it did not stop in time")
    return _lost_by_timeout(seen) if seen.status is Status.STARTING else Follow()


def _lost_by_timeout(seen: ObservedJob) -> MarkLost:
    message = f"attempt {seen.attempt} did not begin to train in time"
    return MarkLost(reason=Reason.START_TIMED_OUT, message=message)


def _is_over(seen: ObservedJob, now: float) -> bool:
    return seen.deadline is not None and now >= seen.deadline
