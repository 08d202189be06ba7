"""How many steps workers take between two exchanges is told wherever levels are."""

from __future__ import annotations

from fastapi.testclient import TestClient

from tests.api.world import World
from tests.unit.service.test_metrics import value

GROWING = {
    "training": {"epochs": 30, "lr_decay": {"at": [4], "factor": 0.1}},
    "compression": {"method": "half"},
    "local_steps": {"low": 4, "high": 16},
}


def test_the_length_of_a_round_is_told_while_it_grows(client: TestClient, world: World) -> None:
    job_id = world.submit(**GROWING)
    world.train(job_id)
    job = f"/api/v1/jobs/{job_id}"
    assert client.get(f"{job}/schedule").json()["local_steps"] == 4
    world.turn_until(lambda: len(client.get(f"{job}/epochs").json()["items"]) >= 8)
    assert client.get(f"{job}/schedule").json()["local_steps"] == 16
    assert value(client.get("/metrics").text, "accordion_job_local_steps", job_id=job_id) == 16
    told = [epoch["local_steps"] for epoch in client.get(f"{job}/epochs").json()["items"]]
    assert told == sorted(told)
    assert {4, 16} == set(told)
    assert client.get(f"{job}/history").json()["epochs"]["local_steps"] == told


def test_the_agreement_of_the_workers_is_told_of_each_epoch(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(training={"epochs": 30})
    world.train(job_id)
    world.turn_until(lambda: len(client.get(f"/api/v1/jobs/{job_id}/epochs").json()["items"]) >= 2)
    told = [one["agreement"] for one in client.get(f"/api/v1/jobs/{job_id}/epochs").json()["items"]]
    columns = client.get(f"/api/v1/jobs/{job_id}/history").json()["epochs"]
    assert columns["agreement"] == told
    newest = value(client.get("/metrics").text, "accordion_job_agreement", job_id=job_id)
    assert newest == told[-1]


def test_without_local_steps_workers_exchange_in_every_step(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(training={"epochs": 30})
    assert client.get(f"/api/v1/jobs/{job_id}/schedule").json()["local_steps"] == 1
    world.train(job_id)
    assert client.get(f"/api/v1/jobs/{job_id}/schedule").json()["local_steps"] == 1
    assert value(client.get("/metrics").text, "accordion_job_local_steps", job_id=job_id) == 1
