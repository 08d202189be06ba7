"""Resize, pause, resume and cancel over HTTP."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

from accordion_service.domain.jobs.statuses import Status
from tests.api.world import World

JOBS = "/api/v1/jobs"
LONG = {"training": {"epochs": 40}}
SHARDED = {
    "task": {"name": "script", "options": {"file": "train.py"}},
    "code": 64 * "0",
    "workers": {"min": 2, "max": 4},
    "parallelism": {"shard": 2},
}
STEERS = {"resize": {"min": 1, "max": 3}, "pause": None, "cancel": None}


@pytest.fixture
def job_id(world: World) -> str:
    """A job that trains."""
    job_id = world.submit(**LONG)
    world.train(job_id)
    return job_id


def steer(client: TestClient, job_id: str, what: str, **headers: str) -> Response:
    return client.post(f"{JOBS}/{job_id}/{what}", json=STEERS.get(what), headers=headers)


def test_a_resize_is_accepted_and_shown(client: TestClient, world: World, job_id: str) -> None:
    answer = steer(client, job_id, "resize")
    assert answer.status_code == 202
    assert (answer.json()["min_workers"], answer.json()["max_workers"]) == (1, 3)
    assert answer.json()["spec"]["workers"]["max"] == 2, "what was submitted stays as it was"
    world.train(job_id, workers=3)
    view = client.get(f"{JOBS}/{job_id}").json()
    assert (view["workers"], view["world_size"], view["tally"]["resizes"]) == (3, 3, {"ordered": 1})
    assert len(view["progress"]["compute_s_by_rank"]) == 3
    assert view["progress"]["micro_batches_by_rank"] == [2, 2, 2]
    [attempt] = client.get(f"{JOBS}/{job_id}/attempts").json()["items"]
    assert (attempt["tally"], attempt["workers"]) == (view["tally"], 3)


@pytest.mark.parametrize("what", STEERS)
def test_etag_changes_with_each_request_but_not_with_its_repetition(
    client: TestClient, world: World, job_id: str, what: str
) -> None:
    before = client.get(f"{JOBS}/{job_id}").headers["etag"]
    first, again = steer(client, job_id, what), steer(client, job_id, what)
    assert first.headers["etag"] != before
    assert (again.status_code, again.headers["etag"]) == (202, first.headers["etag"])


@pytest.mark.parametrize("what", STEERS)
def test_request_with_an_old_etag_changes_nothing(
    client: TestClient, world: World, job_id: str, what: str
) -> None:
    world.override(job_id)
    before = world.job(job_id)
    assert steer(client, job_id, what, **{"If-Match": '"1"'}).status_code == 412
    assert world.job(job_id).version == before.version


def test_a_paused_job_is_resumed(client: TestClient, world: World, job_id: str) -> None:
    assert steer(client, job_id, "pause").json()["status"] == "PAUSING"
    world.reach(job_id, Status.PAUSED)
    assert client.get(f"{JOBS}/{job_id}").json()["message"] == (
        "paused; its state is saved; resume it to continue from there"
    )
    assert client.get("/api/v1/queue").json()["items"] == []
    answer = steer(client, job_id, "resume")
    assert (answer.status_code, answer.json()["status"]) == (202, "QUEUED")
    world.train(job_id)


@pytest.mark.parametrize("what", ["resize", "pause", "resume"])
def test_an_ended_job_is_a_conflict(client: TestClient, world: World, what: str) -> None:
    job_id = world.submit()
    world.finish(job_id)
    answer = steer(client, job_id, what)
    assert answer.status_code == 409
    assert "is SUCCEEDED and cannot be" in answer.json()["detail"]


@pytest.mark.parametrize("what", [*STEERS, "resume"])
def test_a_job_that_is_not_there_is_not_found(client: TestClient, what: str) -> None:
    assert steer(client, "nobody", what).status_code == 404


@pytest.mark.parametrize(
    ("body", "pointer", "sentence"),
    [
        (
            {"min": 3, "max": 2},
            "/max",
            "workers.min is 3, above workers.max 2; lower min or raise max",
        ),
        (
            {"min": 1, "max": 9},
            "/max",
            "4 shares for workers.max 9; lower micro_batch or workers.max",
        ),
        ({"min": 0, "max": 2}, "/min", "greater than or equal to 1"),
        ({"min": 1, "max": 1025}, "/max", "less than or equal to 1024"),
        ({"min": "1", "max": 2}, "/min", "valid integer"),
        ({"min": 1}, "/max", "is missing and has no default"),
        ({"min": 1, "max": 2, "cpus": 4}, "/cpus", "unknown key"),
    ],
)
def test_a_size_that_cannot_be_is_refused_with_its_place(
    client: TestClient, job_id: str, body: dict[str, object], pointer: str, sentence: str
) -> None:
    answer = client.post(f"{JOBS}/{job_id}/resize", json=body)
    assert answer.status_code == 422
    [item] = answer.json()["errors"]
    assert item["pointer"] == pointer
    assert sentence in item["detail"]


@pytest.mark.parametrize(("low", "high", "pointer"), [(3, 4, "/min"), (2, 3, "/max")])
def test_a_size_of_half_a_replica_is_refused_with_its_place(
    client: TestClient, world: World, low: int, high: int, pointer: str
) -> None:
    job_id = world.submit(**SHARDED)
    answer = client.post(f"{JOBS}/{job_id}/resize", json={"min": low, "max": high})
    assert answer.status_code == 422
    [item] = answer.json()["errors"]
    assert item["pointer"] == pointer
    assert f"workers.{pointer[1:]} is 3, and 2 workers hold one model together" in item["detail"]


def test_the_page_asks_for_whole_replicas(client: TestClient, world: World, job_id: str) -> None:
    page = client.get(f"/jobs/{world.submit(**SHARDED)}").text
    assert page.count('min="2" max="1024" step="2"') == 2
    assert client.get(f"/jobs/{job_id}").text.count('min="1" max="1024" step="1"') == 2


def test_a_node_that_is_being_drained_is_shown_and_is_no_room(
    client: TestClient, world: World
) -> None:
    world.runtime.cpus = [2.0, 2.0]
    world.runtime.draining.add(0)
    world.turn()
    view = client.get("/api/v1/cluster").json()
    assert [node["draining"] for node in view["nodes"]] == [True, False]
    assert view["cpus"] == 2.0
    dry = client.post(
        JOBS,
        params={"dry_run": True},
        json={"task": {"name": "digits-mlp"}, "workers": {"min": 3, "max": 3}},
    )
    assert dry.json()["would_wait"]


@pytest.mark.parametrize(
    ("schema", "path"), [("OverrideRequest", "overrides"), ("ResizeRequest", "resize")]
)
def test_examples_of_the_schema_are_accepted_by_a_running_job(
    client: TestClient, world: World, schema: str, path: str
) -> None:
    examples = client.get("/openapi.json").json()["components"]["schemas"][schema]["examples"]
    job_id = world.submit(
        training={"epochs": 300},
        batch={"low": 64, "high": 256},
        compression={"method": "half"},
        local_steps={"low": 4, "high": 16},
    )
    world.train(job_id)
    answers = {
        str(example): client.post(f"{JOBS}/{job_id}/{path}", json=example) for example in examples
    }
    assert {text: answer.status_code for text, answer in answers.items()} == dict.fromkeys(
        answers, 202
    )
