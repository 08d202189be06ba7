"""Lines of `accordion watch` about who caused an event, and about events that are missing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from accordion_client.commands.watch_state import StreamItem, WatchState, apply_event
from accordion_client.commands.watch_view import describe_event
from accordion_service.schemas.history import GapView
from accordion_service.schemas.jobs import EventView

STATE = WatchState(id="j", name="old", status="RUNNING", reason="", message="", epochs=3)
STATUS = {"reason": "", "message": "saved", "attempt": 1, "world_size": 0, "workers": 0}
OVERRIDE = {"id": "o", "number": 3, "level": "low", "layers": ["*"], "apply_at": "next_step"}
OVERRIDE |= {"until": None, "state": "CANCELLED", "message": "cancelled by bob"}
GRANTED = {"what": "granted", "old": 2, "new": 4, "world_size": 2, "message": "free capacity"}
LABELS = {"before": {"labels": {"a": "b"}}, "after": {"labels": {}}}


def lines(item: StreamItem) -> list[str]:
    return list(describe_event(apply_event(STATE, item), item))


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        ("status", {**STATUS, "status": "PAUSED", "by": "ada"}, "PAUSED by ada: saved"),
        ("status", {**STATUS, "status": "PAUSED"}, "PAUSED: saved"),
        ("end", {**STATUS, "status": "CANCELLED", "by": "ada"}, "CANCELLED by ada: saved"),
        (
            "override",
            {**OVERRIDE, "requested_by": "ada", "by": "bob"},
            "override #3: low for *: CANCELLED (cancelled by bob), requested by ada",
        ),
        ("override", OVERRIDE, "override #3: low for *: CANCELLED (cancelled by bob)"),
        ("workers", GRANTED, "2 → 4 workers allocated: free capacity"),
        ("archive", {"archived": True, "by": "ada"}, "archived by ada"),
        (
            "change",
            {"before": {"name": "old"}, "after": {"name": "new"}, "by": "ada"},
            "changed by ada: name old → new",
        ),
        ("change", {**LABELS, "by": "ada"}, "changed by ada: labels a:b → none"),
    ],
)
def test_a_line_names_who_caused_the_event(kind: Any, data: dict[str, Any], line: str) -> None:
    assert lines(EventView(seq=1, type=kind, time=datetime.now(UTC), data=data)) == [line]


@pytest.mark.parametrize(
    "data",
    [
        {"what": "started", "cause": "start", "world_size": 2, "epoch": 0},
        {"what": "failed", "message": "rank 0: the task raised", "final": True, "world_size": 0},
    ],
)
def test_what_the_status_says_as_well_is_told_once(data: dict[str, Any]) -> None:
    event = EventView(seq=1, type="workers", time=datetime.now(UTC), data=data)
    assert lines(event) == []


def decision(epoch: int, **values: Any) -> EventView:
    held = {"epoch": epoch, "cause": "hold", "reason": "held", "level_by_layer": {}, **values}
    return EventView(seq=1, type="decision", time=datetime.now(UTC), data={"decision": held})


def test_a_decision_that_changes_the_length_of_rounds_is_told() -> None:
    state = apply_event(STATE, decision(2, local_steps=4))
    assert list(describe_event(state, decision(2, local_steps=4))) == []
    longer = decision(4, local_steps=16)
    told = ["decision for epoch 4: rounds 4 → 16 local steps"]
    assert list(describe_event(apply_event(state, longer), longer)) == told


def test_a_new_name_is_that_of_the_watched_job() -> None:
    data = {"before": {"name": "old"}, "after": {"name": "new"}}
    event = EventView(seq=1, type="change", time=datetime.now(UTC), data=data)
    assert apply_event(STATE, event).name == "new"


def test_missing_events_are_told_in_a_line() -> None:
    gap = GapView(from_seq=3, to_seq=8, why="the service keeps only the newest")
    assert lines(gap) == ["events 3 to 8 are missing: the service keeps only the newest"]
