"""Jobs that are queued later, and jobs that may train for a limited time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.jobs.statuses import Desired, Reason, Status
from accordion_service.errors import Conflict
from tests.api.conftest import refused_early
from tests.api.team import JOBS
from tests.api.world import DIGITS, World

LONG = {"epochs": 4000}
LIMITED = {"training": LONG, "limits": {"training_seconds": 20}}


def later(world: World, seconds: float) -> str:
    return datetime.fromtimestamp(world.clock.now + seconds, UTC).isoformat()


def test_a_job_is_queued_when_its_time_has_come(client: TestClient, world: World) -> None:
    body = {**DIGITS, "start_at": later(world, 600)}
    made = client.post(JOBS, json=body).json()
    job_id = made["id"]
    assert (made["status"], made["reason"]) == (Status.QUEUED, Reason.SCHEDULED)
    assert made["message"].startswith("starts no earlier than 2027-")
    world.turn(5)
    assert world.job(job_id).reason == Reason.SCHEDULED
    world.clock.now += 600
    assert world.finish(job_id).status == Status.SUCCEEDED


def test_scheduled_jobs_follow_the_waiting_ones_in_the_queue_by_their_time(
    client: TestClient, world: World
) -> None:
    last, first = (world.submit(start_at=later(world, seconds)) for seconds in (900, 600))
    world.runtime.cpus = [0.0]
    waiting = world.submit()
    world.turn(5)
    entries = client.get("/api/v1/queue").json()["items"]
    assert [(entry["position"], entry["id"]) for entry in entries] == [
        (1, waiting),
        (2, first),
        (3, last),
    ]
    assert entries[1]["reason"] == Reason.SCHEDULED
    assert entries[1]["message"].startswith("starts no earlier than 2027-")
    assert entries[1]["waits_for"] == entries[1]["remedies"] == []


def test_a_scheduled_job_keeps_no_other_one_waiting(world: World) -> None:
    world.submit(start_at=later(world, 600), priority=100, workers={"min": 4, "max": 4})
    world.train(world.submit(workers={"min": 4, "max": 4}))


def test_a_time_in_the_past_is_now(client: TestClient, world: World) -> None:
    made = client.post(JOBS, json={**DIGITS, "start_at": later(world, -60)}).json()
    assert made["reason"] == Reason.SUBMITTED


def test_a_time_without_a_zone_is_refused(client: TestClient) -> None:
    answer = client.post(JOBS, json={**DIGITS, "start_at": "2027-02-01T08:00:00"})
    assert (answer.status_code, "/start_at" in answer.json()["detail"]) == (422, True)


def test_a_scheduled_job_is_paused_resumed_and_cancelled(world: World) -> None:
    job_id = world.submit(start_at=later(world, 600))
    world.pause(job_id)
    assert world.job(job_id).status == Status.PAUSED
    world.resume(job_id)
    assert world.job(job_id).reason == Reason.SCHEDULED
    world.turn(3)
    assert world.job(job_id).attempt == 0
    world.cancel(job_id)
    assert world.job(job_id).status == Status.CANCELLED


def test_a_scheduled_job_that_is_resumed_after_its_time_is_queued(world: World) -> None:
    job_id = world.submit(start_at=later(world, 60))
    world.pause(job_id)
    world.clock.now += 61
    world.resume(job_id)
    assert world.job(job_id).reason == Reason.RESUMED
    world.finish(job_id)


def test_a_job_that_has_trained_for_its_limit_saves_and_fails(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(**LIMITED)
    world.train(job_id)
    world.turn(4)
    assert world.job(job_id).status == Status.RUNNING
    world.clock.now += 20
    ended = world.finish(job_id)
    assert (ended.status, ended.reason) == (Status.FAILED, Reason.TIMED_OUT)
    assert ended.message == (
        "it trained for 20 s, the limit of its spec (limits.training_seconds); retry it to"
        " train for as long again, or clone it with a higher limit"
    )
    assert world.history.checkpoints(job_id)
    view = client.get(f"{JOBS}/{job_id}").json()
    assert view["trained_s"] >= 20
    assert [
        attempt["reason"] for attempt in client.get(f"{JOBS}/{job_id}/attempts").json()["items"]
    ] == [Reason.TIMED_OUT]


def test_time_in_the_queue_and_paused_does_not_count(world: World) -> None:
    job_id = world.submit(**LIMITED)
    world.clock.now += 100
    world.train(job_id)
    world.pause(job_id)
    world.reach(job_id, Status.PAUSED)
    trained_s = world.job(job_id).trained_s
    world.clock.now += 100
    world.resume(job_id)
    world.train(job_id)
    world.turn(4)
    assert world.job(job_id).status == Status.RUNNING
    world.clock.now += 20 - trained_s
    assert world.finish(job_id).reason == Reason.TIMED_OUT


def test_a_job_that_is_being_stopped_for_its_limit_can_only_be_cancelled(world: World) -> None:
    job_id = world.submit(**LIMITED)
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    world.clock.now += 20
    world.reach(job_id, Status.STOPPING)
    with pytest.raises(Conflict, match="has reached its time limit"):
        world.pause(job_id)
    with pytest.raises(Conflict, match="has reached its time limit"):
        world.resize(job_id, 1, 1)
    world.cancel(job_id)
    assert world.job(job_id).desired == Desired.CANCEL
    world.clock.now += world.settings.cancel_grace_s
    ended = world.finish(job_id)
    assert (ended.status, ended.reason) == (Status.CANCELLED, Reason.CANCELLED_BY_USER)


def test_a_job_that_is_killed_for_its_limit_fails_too(world: World) -> None:
    job_id = world.submit(**LIMITED)
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    world.clock.now += 20
    world.reach(job_id, Status.STOPPING)
    world.clock.now += world.settings.cancel_grace_s
    assert world.finish(job_id).reason == Reason.TIMED_OUT


def test_time_in_which_the_cluster_was_away_does_not_count(world: World) -> None:
    job_id = world.submit(**LIMITED)
    world.train(job_id)
    world.runtime.lose(job_id)
    world.runtime.down = True
    world.turn()
    world.clock.now += 100
    world.runtime.down = False
    world.turn_until(lambda: world.job(job_id).attempt == 2)
    world.train(job_id)
    world.turn(4)
    assert world.job(job_id).status == Status.RUNNING


def test_a_dry_run_names_the_time_at_which_the_job_is_queued(
    client: TestClient, world: World
) -> None:
    body = {**DIGITS, "start_at": later(world, 600)}
    found = client.post(JOBS, params={"dry_run": True}, json=body).json()
    assert found["would_wait"] is True
    assert found["message"].startswith("starts no earlier than 2027-")


@pytest.mark.parametrize("year", ["0001", "1970", "3000", "9999"])
@refused_early
def test_a_year_that_no_job_waits_for_is_refused(client: TestClient, year: str) -> None:
    answer = client.post(JOBS, json={**DIGITS, "start_at": f"{year}-12-31T23:59:59-23:00"})
    assert (answer.status_code, "give one from 1971 to 2999" in answer.json()["detail"]) == (
        422,
        True,
    )
