"""The panel of a watched job, as a terminal draws it."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from accordion_client import Client
from accordion_client.commands.watch_state import WatchState, apply_event, initial_state
from accordion_client.commands.watch_view import render_panel


def drawn(state: WatchState) -> str:
    console = Console(width=160, file=StringIO())
    with console.capture() as drawing:
        console.print(render_panel(state))
    return drawing.get()


def seen(client: Client, job_id: str) -> WatchState:
    """The job as its events tell it, up to the first override that every worker took."""
    state = initial_state(client.job(job_id))
    for event in client.events(job_id):
        state = apply_event(state, event)
        if any(row["state"] == "APPLIED" for row in state.overrides.values()):
            break
    return state


def test_only_a_job_that_trains_has_a_pace(accordion, running, service) -> None:
    with Client(service.url) as client:
        state = initial_state(client.job(running))
    trains, stands = drawn(state), drawn(replace(state, status="PAUSED", world_size=0))
    assert all(word in trains for word in ("epochs done", "samples/s on 2 workers", " left"))
    assert "epochs done" in stands
    assert not any(word in stands for word in ("samples/s", " left"))


def test_decisions_and_overrides_go_by_numbers(accordion, running, service) -> None:
    accordion("override", running, "--level", "rank=3", "--layers", "fc1*", "--wait")
    with Client(service.url) as client:
        text = drawn(seen(client, running))
    assert "override #1 by admin holds 1 of 3 layers" in text
    assert "#1: rank=3 for fc1*: APPLIED" in text
