"""Resize, pause and resume on the command line, and the display of resizes."""

from __future__ import annotations

from typing import Any

import pytest

from accordion_client import Client
from accordion_service.domain.performance.elasticity import ElasticityStats
from accordion_service.schemas.format import format_elasticity, format_worker_event
from tests.api.conftest import Live
from tests.unit.service.conftest import Accordion

STARTED = {
    "what": "started",
    "cause": "resize",
    "why": "joined",
    "previous_world_size": 2,
    "world_size": 3,
}


def until(service: Live, job_id: str, status: str) -> None:
    """Follow the job's events until it is in a state; earlier events may name that state too."""
    with Client(service.url) as client:
        next(_ for _ in client.events(job_id) if client.job(job_id).status == status)


def until_resized(service: Live, job_id: str) -> None:
    """Follow the events of a job of two workers until another number of them trains."""
    with Client(service.url) as client:
        for event in client.events(job_id):
            if getattr(event, "data", {}).get("previous_world_size") == 2:
                break


def test_resize_gives_a_running_job_other_workers(
    accordion: Accordion, running: str, service: Live
) -> None:
    said = accordion("resize", running, 1, 3)
    assert said.code == 0
    assert "1 to 3 allowed" in said.out
    until_resized(service, running)
    shown = accordion("show", running).out
    assert "3 train now, 3 allocated, 1 to 3 allowed" in shown
    assert "1 resize (allocation changed 1), 0 steps rolled back, 0.8 s lost" in shown


def test_show_tells_of_checkpoints_that_fail_until_one_is_complete(
    accordion: Accordion, running: str, service: Live
) -> None:
    assert "could not be saved" not in accordion("show", running).out
    service.runtime.jobs[running].missed = 3
    with Client(service.url) as client:
        next(
            _
            for _ in client.events(running)
            if client.job(running).progress.failed_checkpoints_in_a_row  # type: ignore[union-attr]
        )
    shown = accordion("show", running).out
    assert "the newest 3 checkpoints could not be saved; the log of the job has the cause" in shown


def test_a_size_that_the_job_cannot_have_is_a_usage_error(
    accordion: Accordion, running: str
) -> None:
    said = accordion("resize", running, 1, 9)
    assert (said.code, said.out) == (2, "")
    assert "shares for workers.max 9; lower micro_batch or workers.max" in said.err
    assert "max: " in said.err


def test_paused_job_stops_and_resumed_job_continues(
    accordion: Accordion, running: str, service: Live
) -> None:
    assert "is PAUSING" in accordion("pause", running).out
    until(service, running, "PAUSED")
    assert accordion("show", running, "--json").json()["job"]["world_size"] == 0
    assert "is QUEUED" in accordion("resume", running).out
    until(service, running, "RUNNING")
    assert accordion("show", running, "--json").json()["job"]["attempt"] == 2


def test_watching_tells_of_workers_that_come_and_go(
    accordion: Accordion, running: str, service: Live
) -> None:
    accordion("resize", running, 1, 3)
    accordion("override", running, "--level", "low", "--wait")
    until_resized(service, running)  # a cancelled job is not
    accordion("cancel", running)
    told = accordion("watch", running).out
    assert "1 to 3 workers allowed by admin" in told
    allocated = "2 → 3 workers allocated: there is free capacity"
    assert f"{allocated} and no job waits for it" in told
    assert "RESIZING: the group changes from 2 to 3 workers: as allocated" in told
    assert "override #1: low for *: PENDING (" in told
    assert "STOPPING by admin: the workers save their state and stop" in told
    assert "CANCELLED by admin: " in told
    assert "2 → 3 workers: allocation changed, 0 steps rolled back, 0.8 s lost" in told


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            {**STARTED, "steps_rolled_back": 0, "seconds_lost": 0.82},
            "2 → 3 workers: workers joined, 0 steps rolled back, 0.8 s lost",
        ),
        (
            {
                **STARTED,
                "cause": "recovery",
                "why": "infrastructure",
                "steps_rolled_back": 1,
                "seconds_lost": 2.0,
            },
            "2 → 3 workers: workers lost, 1 step rolled back, 2.0 s lost",
        ),
        (
            {
                "what": "started",
                "cause": "start",
                "world_size": 1,
                "epoch": 2,
                "resumed_from": "epoch-00002",
            },
            "1 worker trains from epoch 2, resumed from epoch-00002",
        ),
        (
            {"what": "failed", "message": "a worker process ended"},
            "workers ended: a worker process ended",
        ),
    ],
)
def test_a_change_of_workers_is_told_with_its_cost(data: dict[str, Any], text: str) -> None:
    assert format_worker_event(data) == text


def test_what_changes_cost_is_told_by_cause() -> None:
    cost = ElasticityStats(
        resizes={"joined": 2}, recoveries={"job": 1}, seconds_lost=3.14, steps_rolled_back=5
    )
    assert (
        format_elasticity(cost)
        == "2 resizes (workers joined 2), 1 recovery (the job failed 1), 5 steps rolled back, 3.1 s"
        " lost"
    )
