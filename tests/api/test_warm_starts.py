"""Jobs that start with the model of another job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.jobs.statuses import Reason, Status
from tests.api.team import ADMIN, JOBS, Team
from tests.api.world import DIGITS, World

LONG = {"training": {"epochs": 400}, "objective": {"metric": "loss", "mode": "max"}}
UNKNOWN = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.fixture
def source(world: World) -> str:
    job_id = world.submit(**LONG)
    world.turn_until(lambda: len(world.history.checkpoints(job_id)) >= 3)
    return job_id


def submit(client: TestClient, **warm_start: Any) -> Any:
    return client.post(JOBS, json={**DIGITS, "warm_start": warm_start})


@pytest.mark.parametrize("checkpoint", [None, "best", "epoch-00002"])
def test_workers_are_told_where_the_model_is(
    client: TestClient, world: World, source: str, checkpoint: str | None
) -> None:
    made = submit(client, job=source, checkpoint=checkpoint)
    assert made.status_code == 201, made.text
    names = [row.name for row in world.history.checkpoints(source)]
    world.train(made.json()["id"])
    found = world.runtime.jobs[made.json()["id"]].launch.warm_start
    assert found is not None
    assert (found.job_id, found.url) == (source, None)
    assert found.directory == f"{world.settings.storage_of(source)}/checkpoints"
    expected = {None: names[-1], "best": names[0]}.get(checkpoint, checkpoint)
    if checkpoint is None:
        assert found.names[0] >= expected
    else:
        assert found.names[0] == expected
    assert world.runtime.jobs[source].launch.warm_start is None


def test_a_model_that_does_not_exist_is_refused(
    client: TestClient, world: World, source: str
) -> None:
    plain = world.submit(training={"epochs": 400}, workers={"max": 1})
    world.turn_until(lambda: len(world.history.checkpoints(plain)) >= 1)
    queued = world.submit(**LONG)
    for warm_start, pointer, detail in (
        ({"job": UNKNOWN}, "/job", f"there is no job with the ID {UNKNOWN}"),
        ({"job": source, "checkpoint": "g7"}, "/checkpoint", "has no checkpoint 'g7'; its newest"),
        ({"job": queued}, "", "has not saved a checkpoint yet"),
        ({"job": plain, "checkpoint": "best"}, "", "has no objective, by which a checkpoint"),
    ):
        refused = submit(client, **warm_start)
        assert refused.status_code == 422
        [error] = refused.json()["errors"]
        assert error["pointer"] == f"/warm_start{pointer}"
        assert detail in error["detail"]
        clone = client.post(f"{JOBS}/{source}/clone", json={"spec": {"warm_start": warm_start}})
        assert clone.json()["errors"][0]["pointer"] == f"/spec/warm_start{pointer}"


def test_the_model_of_a_hidden_job_does_not_exist(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    job_id = team.submit(ada)
    body = {**DIGITS, "warm_start": {"job": job_id}}
    hidden = team.call(bob, "POST", JOBS, json=body)
    assert f"there is no job with the ID {job_id}" in hidden.text
    seen = team.call(ADMIN, "POST", JOBS, json=body)
    assert "has not saved a checkpoint yet" in seen.text


def test_a_job_whose_model_was_deleted_fails_and_says_so(
    client: TestClient, world: World, source: str
) -> None:
    later = datetime.fromtimestamp(world.clock.now + 3600, UTC).isoformat()
    body = {**DIGITS, "warm_start": {"job": source}, "start_at": later}
    made = client.post(JOBS, json=body).json()["id"]
    world.cancel(source)
    world.turn_until(lambda: world.job(source).status == Status.CANCELLED)
    assert client.delete(f"{JOBS}/{source}").status_code < 300
    world.clock.now += 3600
    world.turn_until(lambda: world.job(made).status == Status.FAILED)
    job = world.job(made)
    assert job.reason == Reason.START_FAILED
    assert f"job {source}, with whose model this one starts, was deleted" in job.message


def test_a_job_with_a_checkpoint_of_its_own_needs_the_model_no_more(
    client: TestClient, world: World, source: str
) -> None:
    made = client.post(JOBS, json={**DIGITS, **LONG, "warm_start": {"job": source}}).json()["id"]
    world.turn_until(lambda: len(world.history.checkpoints(made)) >= 1)
    world.pause(made)
    world.cancel(source)
    world.turn_until(lambda: world.job(made).status == Status.PAUSED)
    world.turn_until(lambda: world.job(source).status == Status.CANCELLED)
    client.delete(f"{JOBS}/{source}")
    world.resume(made)
    world.train(made)
    assert world.runtime.jobs[made].launch.warm_start is None
