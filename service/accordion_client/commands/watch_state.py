"""State of a watched job, and how an event changes it; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from accordion_service.domain.documents import value_at
from accordion_service.domain.jobs.statuses import Kind
from accordion_service.schemas.history import GapView
from accordion_service.schemas.jobs import EventView, JobView, ProgressView

StreamItem = EventView | ProgressView | GapView
"""Item of a stream of events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """State of one job, built from its events."""

    id: str
    name: str
    status: str
    reason: str
    message: str
    epochs: int | None
    """Planned epochs of the job; None if unknown, as in a guest run."""
    world_size: int = 0
    workers: int = 0
    """Workers allocated to the job; 0 if none are."""
    attempt: int = 0
    progress: ProgressView | None = None
    epoch: Mapping[str, Any] = field(default_factory=dict)
    """Newest finished epoch, as in the API; empty before the first."""
    decision: Mapping[str, Any] = field(default_factory=dict)
    """Newest decision, as in the API; empty before the first."""
    switched: bool = False
    """Whether the newest decision changed a level, or is the first one that does not only continue.
    """
    rounds: tuple[int, int] = (1, 1)
    """Local steps of a round before and after the newest decision."""
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Overrides by id, in order of arrival."""
    ended: bool = False


def initial_state(job: JobView) -> WatchState:
    """Return the state before the first event."""
    return WatchState(
        id=job.id,
        name=job.name,
        status=job.status.value,
        reason=job.reason.value,
        message=job.message,
        epochs=None if job.kind == Kind.GUEST else value_at(job.spec, "training.epochs", 0),
        world_size=job.world_size,
        workers=job.workers,
        attempt=job.attempt,
        progress=job.progress,
    )


def apply_event(state: WatchState, event: StreamItem) -> WatchState:
    """Return the state after an event; unknown kinds of events change nothing."""
    if isinstance(event, ProgressView):
        return replace(state, progress=event)
    if isinstance(event, GapView):
        return state
    change = _CHANGES.get(event.type)
    return change(state, event.data) if change else state


def _apply_status(state: WatchState, data: Mapping[str, Any]) -> WatchState:
    known = {name: data[name] for name in ("status", "reason", "message", "attempt", "world_size")}
    return replace(state, workers=data["workers"], **known)


def _apply_workers(state: WatchState, data: Mapping[str, Any]) -> WatchState:
    wanted = data["new"] if data["what"] == "granted" else state.workers
    return replace(state, world_size=data["world_size"], workers=wanted)


def _apply_epoch(state: WatchState, data: Mapping[str, Any]) -> WatchState:
    return replace(state, epoch=data)


def _apply_decision(state: WatchState, data: Mapping[str, Any]) -> WatchState:
    old, new = state.decision, data["decision"]
    switched = new["level_by_layer"] != old["level_by_layer"] if old else new["cause"] != "hold"
    length = new.get("local_steps", 1)
    before = old.get("local_steps", 1) if old else length
    return replace(state, decision=new, switched=switched, rounds=(before, length))


def _apply_override(state: WatchState, data: Mapping[str, Any]) -> WatchState:
    return replace(state, overrides={**state.overrides, data["id"]: data})


def _apply_change(state: WatchState, data: Mapping[str, Any]) -> WatchState:
    return replace(state, name=data["after"].get("name", state.name))


def _apply_end(state: WatchState, data: Mapping[str, Any]) -> WatchState:
    known = {name: data[name] for name in ("status", "reason", "message")}
    return replace(state, ended=True, world_size=0, **known)


_CHANGES = {
    "status": _apply_status,
    "workers": _apply_workers,
    "epoch": _apply_epoch,
    "decision": _apply_decision,
    "override": _apply_override,
    "change": _apply_change,
    "end": _apply_end,
}
