"""How many steps workers take between two exchanges is told wherever levels are, and overridden as
levels are.
"""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.test_bad_input import problem_of
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


@pytest.mark.parametrize(("start_steps", "told"), [(0, 4), (20, 1)])
def test_the_length_of_the_first_round_is_told_before_a_job_starts(
    client: TestClient, world: World, *, start_steps: int, told: int
) -> None:
    ladder = {"low": 4, "high": 16, "start_steps": start_steps}
    job_id = world.submit(**{**GROWING, "local_steps": ladder})
    said = {"local_steps": told, "policy_local_steps": told, "local_steps_said_by": "policy"}
    assert in_force(client, job_id) == said


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


@pytest.mark.parametrize("level", ["low", "high", 500])
def test_an_override_of_a_budget_is_left_to_the_workers_who_know_the_limits(
    client: TestClient, world: World, level: str | int
) -> None:
    job_id = world.submit(compression={"method": "half"}, local_steps={"budget": 4})
    asked = {"target": "local_steps", "level": level}
    assert client.post(f"/api/v1/jobs/{job_id}/overrides", json=asked).status_code == 202
    too_long = {"target": "local_steps", "level": 1_000_001}
    assert client.post(f"/api/v1/jobs/{job_id}/overrides", json=too_long).status_code == 422


ROUNDS = {"target": "local_steps", "level": 9, "until": 20, "reason": "the link is slow today"}


def in_force(client: TestClient, job_id: str) -> dict[str, Any]:
    """What the schedule tells of local steps."""
    schedule = client.get(f"/api/v1/jobs/{job_id}/schedule").json()
    return {name: value for name, value in schedule.items() if "local_steps" in name}


def test_an_override_of_local_steps_is_applied_once_every_rank_runs_it(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(**GROWING)
    world.train(job_id)
    answer = client.post(f"/api/v1/jobs/{job_id}/overrides", json=ROUNDS)
    made = answer.json()
    assert (answer.status_code, made["target"], made["layers"]) == (202, "local_steps", ["*"])
    world.turn_until(lambda: world.override_row(job_id, made["id"]).state == "APPLIED")
    [view] = client.get(f"/api/v1/jobs/{job_id}/overrides").json()["items"]
    assert (view["level"], view["acks"], view["world_size"]) == (9, 2, 2)
    said = {"local_steps": 9, "policy_local_steps": 4, "local_steps_said_by": made["id"]}
    assert in_force(client, job_id) == said
    world.turn(2)
    assert world.history.epochs(job_id)[-1].record["local_steps"] == 9
    columns = client.get(f"/api/v1/jobs/{job_id}/history").json()["decisions"]
    assert columns["local_steps_override"][-1] == made["id"]


def test_the_policy_decides_local_steps_again_after_their_override_is_over(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(**GROWING)
    world.train(job_id)
    override_id = world.override(job_id, **{**ROUNDS, "until": 8})
    world.turn_until(lambda: world.override_row(job_id, override_id).state == "EXPIRED")
    assert in_force(client, job_id)["local_steps_said_by"] == "policy"
    override_id = world.override(job_id, **{**ROUNDS, "level": 1})
    world.turn_until(lambda: world.override_row(job_id, override_id).state == "APPLIED")
    assert in_force(client, job_id)["local_steps"] == 1
    client.delete(f"/api/v1/jobs/{job_id}/overrides/{override_id}")
    world.turn(3)
    said = {"local_steps": 16, "policy_local_steps": 16, "local_steps_said_by": "policy"}
    assert in_force(client, job_id) == said


def test_an_override_of_local_steps_is_superseded_by_the_next_one_and_by_no_other(
    world: World,
) -> None:
    job_id = world.submit(**GROWING)
    world.train(job_id)
    older = world.override(job_id, **ROUNDS)
    layers = world.override(job_id, level="high")
    world.turn_until(lambda: world.override_row(job_id, layers).state == "APPLIED")
    assert world.override_row(job_id, older).state == "APPLIED"
    newer = world.override(job_id, **{**ROUNDS, "level": "high"})
    world.turn_until(lambda: world.override_row(job_id, newer).state == "APPLIED")
    states = [world.override_row(job_id, name).state for name in (older, layers)]
    assert states == ["SUPERSEDED", "APPLIED"]
    assert world.override_row(job_id, older).message == "local steps are held by newer override #3"


def test_an_override_of_local_steps_holds_in_the_next_worker_group(world: World) -> None:
    job_id = world.submit(**GROWING)
    world.train(job_id)
    override_id = world.override(job_id, **ROUNDS)
    world.turn_until(lambda: world.override_row(job_id, override_id).state == "APPLIED")
    world.runtime.break_group(job_id)
    world.turn(4)
    states = [event.data["state"] for event in world.events(job_id, "override")]
    assert states == ["PENDING", "DELIVERED", "APPLIED", "DELIVERED", "APPLIED"]
    assert world.history.epochs(job_id)[-1].record["local_steps"] == 9


WRONG_ROUNDS = [
    ({"level": "middle"}, "/level", "known are low (4), high (16), or a number from 1, which"),
    ({"level": {"rank": 1}}, "/level", "'rank': 1"),
    ({"level": 17}, "/level", "level is 17 local steps; rounds of this job have at most 16"),
    ({"level": 0}, "/level", "to 16"),
    ({"level": 2, "layers": ["fc1*"]}, "/layers", "apply to the whole model; leave out the layers"),
    ({"level": 2, "until": 31}, "/until", "the job has 30 epochs; give at most 30"),
]


@pytest.mark.parametrize(("wish", "pointer", "sentence"), WRONG_ROUNDS)
def test_a_wrong_override_of_local_steps_is_refused_at_the_wrong_value(
    client: TestClient, world: World, *, wish: Any, pointer: str, sentence: str
) -> None:
    job_id = world.submit(**GROWING)
    path = f"/api/v1/jobs/{job_id}/overrides"
    body = problem_of(client.post(path, json={"target": "local_steps", **wish}), 422)
    assert [item["pointer"] for item in body["errors"]] == [pointer]
    assert sentence in body["detail"]
    assert world.overrides.list_all(job_id) == []


def test_without_local_steps_workers_exchange_in_every_step(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(training={"epochs": 30})
    assert client.get(f"/api/v1/jobs/{job_id}/schedule").json()["local_steps"] == 1
    world.train(job_id)
    assert client.get(f"/api/v1/jobs/{job_id}/schedule").json()["local_steps"] == 1
    assert value(client.get("/metrics").text, "accordion_job_local_steps", job_id=job_id) == 1
