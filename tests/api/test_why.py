"""What holds a job up, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.store.tables.models import JobRow
from tests.api.world import World

JOBS = "/api/v1/jobs"
LONG = {"training": {"epochs": 300}}


@pytest.fixture
def job_id(world: World) -> str:
    """A job that trains."""
    job_id = world.submit(**LONG)
    world.train(job_id)
    return job_id


def why(client: TestClient, job_id: str) -> Any:
    response = client.get(f"{JOBS}/{job_id}/why")
    assert response.status_code == 200
    return response.json()


def slow_the_link(world: World, job_id: str) -> None:
    """Let a step wait for a second."""
    with world.database.write() as session:
        row = session.get(JobRow, job_id)
        phases = {**row.progress["step_s_by_phase"], "communicate": 1.0}
        row.progress = {**row.progress, "step_s_by_phase": phases}


def test_the_answer_has_the_cause_its_share_and_the_best_change(
    client: TestClient, world: World, job_id: str
) -> None:
    answer = why(client, job_id)
    assert answer["cause"] == "link"
    assert answer["share"] == pytest.approx(answer["seconds_by_cause"]["link"] / answer["step_s"])
    assert answer["sentence"].startswith("The network holds this job up: exchanging gradients")
    assert "at 96 Mbit/s and 0.2 ms per message" in answer["sentence"]
    assert answer["change"]["speedup"] > 1.0
    assert answer["updated_at"] == client.get(f"{JOBS}/{job_id}").json()["progress"]["updated_at"]


def test_the_change_follows_the_levels_in_force(
    client: TestClient, world: World, job_id: str
) -> None:
    assert "policy.name cost_aware" in why(client, job_id)["change"]["text"]
    world.override(job_id, level="high")
    world.turn_until(
        lambda: (
            {row["level"] for row in client.get(f"{JOBS}/{job_id}/schedule").json()["layers"]}
            == {"high"}
        )
    )
    slow_the_link(world, job_id)
    assert "a global batch twice as large" in why(client, job_id)["change"]["text"]


def test_workers_of_one_host_are_not_told_of_a_network(
    client: TestClient, world: World, job_id: str
) -> None:
    with world.database.write() as session:
        job = session.get_one(JobRow, job_id)
        job.storage = {**job.storage, "hosts": 1}
    answer = why(client, job_id)
    assert (answer["cause"], "link" in answer["sentence"]) == ("processor", False)


def test_a_queued_job_has_its_message_in_place_of_a_cause(client: TestClient, world: World) -> None:
    job_id = world.submit(
        workers={"min": 500, "max": 500}, training={"micro_batch": 1, "global_batch": 500}
    )
    world.turn()
    answer = why(client, job_id)
    assert answer["sentence"].startswith("The job does not train, it is QUEUED: ")
    assert (answer["cause"], answer["change"], answer["updated_at"]) == (None, None, None)


def test_a_job_that_has_ended_shows_its_last_steps(
    client: TestClient, world: World, job_id: str
) -> None:
    world.cancel(job_id)
    assert world.finish(job_id).status == Status.CANCELLED
    answer = why(client, job_id)
    assert answer["cause"] == "link"
    assert answer["sentence"].startswith("At the end, the network holds this job up")


@pytest.mark.parametrize("where", ["while it is queued", "while it starts"])
def test_a_job_that_ended_before_its_first_step_shows_its_status(
    client: TestClient, world: World, where: str
) -> None:
    job_id = world.submit(**LONG)
    if where == "while it starts":
        world.turn()
    world.cancel(job_id)
    assert world.finish(job_id).status == Status.CANCELLED
    with world.database.write() as session:
        row = session.get(JobRow, job_id)
        row.progress = None
        message = row.message
    assert why(client, job_id)["sentence"] == (
        f"The job ended before its first report, it is CANCELLED: {message}"
    )


def test_a_job_without_compression_is_started_again_with_one(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(compression={"method": "none"}, **LONG)
    world.train(job_id)
    change = why(client, job_id)["change"]
    assert change["text"].startswith("Start the job with compression.method powersgd")


def test_uneven_workers_are_balanced_if_the_spec_leaves_that_out(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(
        workers={"min": 2, "max": 2, "balance": False},
        training={"epochs": 300, "global_batch": 64, "micro_batch": 16},
    )
    world.train(job_id)
    with world.database.write() as session:
        row = session.get(JobRow, job_id)
        row.progress = {**row.progress, "compute_s_by_rank": [0.001, 0.01]}
    assert "workers.balance true" in why(client, job_id)["change"]["text"]


def test_on_gpus_exchanges_are_not_told_apart(
    client: TestClient, world: World, job_id: str
) -> None:
    with world.database.write() as session:
        row = session.get(JobRow, job_id)
        row.spec = {**row.spec, "workers": {**row.spec["workers"], "gpus": 1}}
    answer = why(client, job_id)
    assert {"link", "encoding"}.isdisjoint(answer["seconds_by_cause"])


def test_predictions_of_the_policy_that_measures_costs_are_shown(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(policy={"name": "cost_aware"}, **LONG)
    world.train(job_id)
    slow_the_link(world, job_id)
    answer = why(client, job_id)
    assert set(answer["wait_s_by_level"]) == {"none", "half", "low", "high"}
    assert answer["exchange_wait_s"] == 0.004
    assert answer["change"]["text"].startswith("No level is known to be faster on this link")


@pytest.mark.parametrize("status", [Status.RESIZING, Status.RECOVERING])
def test_a_job_whose_workers_are_replaced_does_not_train(
    client: TestClient, world: World, job_id: str, status: Status
) -> None:
    with world.database.write() as session:
        session.get(JobRow, job_id).status = status
    answer = why(client, job_id)
    assert answer["cause"] is None
    assert answer["sentence"].startswith(f"The job does not train, it is {status}")


def test_a_running_job_without_a_report_says_so(
    client: TestClient, world: World, job_id: str
) -> None:
    with world.database.write() as session:
        session.get(JobRow, job_id).progress = None
    assert why(client, job_id)["sentence"] == "The workers have not reported a step yet."


def test_an_unknown_job_is_not_found(client: TestClient) -> None:
    assert client.get(f"{JOBS}/nothing/why").status_code == 404


def test_a_job_that_waits_for_its_storage_has_no_speed_and_says_what_it_waits_for(
    client: TestClient, world: World, job_id: str
) -> None:
    assert client.get(f"{JOBS}/{job_id}").json()["progress"]["samples_per_s"] > 0
    with world.database.write() as session:
        row = session.get_one(JobRow, job_id)
        row.reason, row.message = Reason.WAITING_FOR_STORAGE.value, "no space left"
    answer = why(client, job_id)
    sentence = "The job does not train, it waits for its storage: no space left"
    assert (answer["sentence"], answer["cause"]) == (sentence, None)
    assert client.get(f"{JOBS}/{job_id}").json()["progress"]["samples_per_s"] == 0
    exported = f'accordion_job_samples_per_second{{job_id="{job_id}"}} 0.0'
    assert exported in client.get("/metrics").text
