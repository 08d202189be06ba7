"""The newest epochs of `accordion watch`, and the newest lines of `accordion logs`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from accordion_client.commands.recent_epochs import RecentEpochs
from accordion_service.schemas.jobs import EventView
from tests.unit.service.conftest import Accordion


def event(kind: Any, data: dict[str, Any]) -> EventView:
    return EventView(seq=1, type=kind, time=datetime.now(UTC), data=data)


def epoch(number: int) -> EventView:
    return event("epoch", {"epoch": number})


def decision(number: int) -> EventView:
    return event("decision", {"decision": {"epoch": number}})


def shown(recent: RecentEpochs, *events: EventView) -> list[str]:
    """Lines of events, each of which has one with its type and epoch."""
    lines: list[str] = []
    for one in events:
        data = one.data.get("decision", one.data)
        lines += recent.select(one, [f"{one.type} {data.get('epoch', '')}".strip()])
    return lines


def test_earlier_epochs_and_their_decisions_are_left_out_and_counted() -> None:
    events = [one for number in range(5) for one in (decision(number), epoch(number))]
    assert shown(RecentEpochs(3), *events) == [
        "3 earlier epochs left out; --all shows all",
        *("decision 3", "epoch 3", "decision 4", "epoch 4"),
    ]


def test_events_about_no_epoch_are_kept() -> None:
    events = [event("status", {}), epoch(0), event("workers", {}), epoch(1)]
    assert shown(RecentEpochs(1), *events) == [
        *("status", "workers", "1 earlier epoch left out; --all shows all", "epoch 1"),
    ]


def test_an_epoch_that_is_trained_again_is_not_left_out() -> None:
    assert shown(RecentEpochs(1), epoch(0), epoch(1), epoch(0))[1:] == ["epoch 1", "epoch 0"]


def test_all_is_shown_of_a_job_that_has_just_begun() -> None:
    assert shown(RecentEpochs(0), epoch(0), epoch(1)) == ["epoch 0", "epoch 1"]


def test_watch_shows_the_newest_epochs_or_all(accordion: Accordion, spec: Path) -> None:
    job_id = accordion("submit", spec, "--set", "training.epochs=15", "--json").json()["id"]
    everything = accordion("watch", job_id, "--all").out.splitlines()
    newest = accordion("watch", job_id).out.splitlines()
    assert sum(line.startswith("epoch ") for line in everything) == 15
    assert [line.split()[1] for line in newest if line.startswith("epoch ")] == [
        str(number) for number in range(5, 15)
    ]
    assert "5 earlier epochs left out; --all shows all" in newest


def test_watch_shows_as_many_epochs_of_a_model_of_many_layers(
    accordion: Accordion, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accordion_service.api.history.MAX_PAGE_LAYERS", 1)
    job_id = accordion("submit", spec, "--set", "training.epochs=15", "--json").json()["id"]
    accordion("watch", job_id)
    newest = accordion("watch", job_id).out.splitlines()
    assert sum(line.startswith("epoch ") for line in newest) == 10


def test_logs_print_the_newest_lines(accordion: Accordion, spec: Path) -> None:
    job_id = accordion("submit", spec, "--json").json()["id"]
    lines = accordion("logs", job_id, "--follow").out.splitlines()
    assert len(lines) > 3
    assert accordion("logs", job_id, "--tail", "3").out.splitlines() == lines[-3:]
    assert accordion("logs", job_id, "--tail", "3", "-f").out.splitlines() == lines[-3:]
    assert accordion("logs", job_id, "--tail", "0").code == 2
