"""Jobs that failed or were cancelled and go on."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.jobs.statuses import Desired, Reason, Status
from tests.api.team import JOBS
from tests.api.world import World

LONG = {"training": {"epochs": 12}}
STRICT = {**LONG, "max_failures": 0}


def fail(world: World, **spec: Any) -> str:
    """A job that has failed after an epoch."""
    job_id = world.submit(**{**STRICT, **spec})
    world.train(job_id)
    world.turn_until(lambda: len(world.epochs(job_id)) >= 2)
    world.runtime.fail(job_id, "ValueError: broken on purpose")
    assert world.finish(job_id).status == Status.FAILED
    return job_id


def retry(client: TestClient, job_id: str) -> Any:
    return client.post(f"{JOBS}/{job_id}/retry")


def test_a_failed_job_goes_on_from_its_checkpoint(client: TestClient, world: World) -> None:
    job_id = fail(world)
    answer = retry(client, job_id)
    assert answer.status_code == 202
    view = answer.json()
    assert (view["status"], view["reason"], view["ended_at"]) == ("QUEUED", "RETRIED", None)
    assert view["message"] == "retried; waits for the scheduler"
    saved = world.history.checkpoints(job_id)[-1].step
    world.train(job_id)
    assert world.runtime.jobs[job_id].launch.saved_step == saved > 0
    ended = world.finish(job_id)
    assert (ended.status, ended.attempt) == (Status.SUCCEEDED, 2)
    assert world.epochs(job_id) == list(range(12))
    starts = [event.data for event in world.events(job_id, "workers")]
    assert [data["resumed_from"] is None for data in starts if data["what"] == "started"] == [
        True,
        False,
    ]
    assert [one.reason for one in world.history.attempts(job_id)] == ["TASK_RAISED", "COMPLETED"]


def test_a_cancelled_job_is_retried(client: TestClient, world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.cancel(job_id)
    assert world.finish(job_id).status == Status.CANCELLED
    retry(client, job_id)
    assert world.job(job_id).desired == Desired.RUN
    assert world.finish(job_id).status == Status.SUCCEEDED
    assert world.epochs(job_id) == list(range(12))


def test_a_job_that_was_cancelled_in_the_queue_is_retried(client: TestClient, world: World) -> None:
    job_id = world.submit(**LONG)
    world.cancel(job_id)
    assert retry(client, job_id).status_code == 202
    assert retry(client, job_id).status_code == 202, "repeating has no effect"
    world.train(job_id)
    assert retry(client, job_id).json()["status"] == "RUNNING"
    assert world.finish(job_id).attempt == 1


def test_a_retried_job_waits_for_its_time(client: TestClient, world: World) -> None:
    start_at = datetime.fromtimestamp(world.clock.now + 600, UTC).isoformat()
    job_id = world.submit(**LONG, start_at=start_at)
    world.cancel(job_id)
    assert retry(client, job_id).json()["reason"] == "SCHEDULED"
    world.clock.now += 600
    assert world.finish(job_id).status == Status.SUCCEEDED


def test_a_retried_job_may_fail_and_be_retried_again(client: TestClient, world: World) -> None:
    job_id = fail(world)
    retry(client, job_id)
    world.train(job_id)
    assert retry(client, job_id).json()["attempt"] == 2, "a retried job that runs does not change"
    world.runtime.fail(job_id, "ValueError: again")
    assert world.finish(job_id).status == Status.FAILED
    retry(client, job_id)
    assert world.finish(job_id).status == Status.SUCCEEDED
    assert world.job(job_id).attempt == 3


def test_a_scheduler_that_is_killed_after_a_retry_does_not_end_the_job(
    client: TestClient, world: World
) -> None:
    job_id = fail(world)
    retry(client, job_id)
    world.reach(job_id, Status.STARTING)
    world.runtime.lose(job_id)
    world.kill_scheduler()
    assert world.finish(job_id).status == Status.SUCCEEDED
    assert world.epochs(job_id) == list(range(12))


def test_the_events_of_a_retried_job_end_once(client: TestClient, world: World) -> None:
    job_id = fail(world)
    retry(client, job_id)
    world.finish(job_id)
    text = client.get(f"{JOBS}/{job_id}/events").text
    frames = [frame.splitlines() for frame in text.split("\n\n") if "id: " in frame]
    assert [frame[0] for frame in frames] == [f"id: {n + 1}" for n in range(len(frames))]
    assert [frame[1] for frame in frames].count("event: end") == 1
    assert frames[-1][1] == "event: end"
    statuses = [json.loads(frame[2][6:])["data"] for frame in frames if frame[1] == "event: status"]
    assert all({"desired", "attempt", "world_size", "workers"} <= data.keys() for data in statuses)


@pytest.mark.parametrize("end", ["running", "succeeded"])
def test_only_a_job_that_failed_or_was_cancelled_is_retried(
    client: TestClient, world: World, end: str
) -> None:
    job_id = world.submit(training={"epochs": 2 if end == "succeeded" else 400})
    (world.finish if end == "succeeded" else world.train)(job_id)
    answer = retry(client, job_id)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "only a job that failed or was cancelled can be retried" in answer.json()["detail"]


def test_a_retried_job_has_its_time_again(client: TestClient, world: World) -> None:
    job_id = world.submit(training={"epochs": 400}, limits={"training_seconds": 5})
    world.train(job_id)
    world.clock.now += 5
    assert world.finish(job_id).reason == Reason.TIMED_OUT
    retry(client, job_id)
    world.train(job_id)
    world.turn(4)
    assert world.job(job_id).status == Status.RUNNING
