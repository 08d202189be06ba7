"""Settings of the optimizer are overridden as levels are, within the ranges of the job file."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.test_bad_input import problem_of
from tests.api.world import World

LONG = {"training": {"epochs": 30, "override_ranges": {"lr": [0.001, 0.4]}}}
SCRIPT = {
    "task": {"name": "script", "options": {"file": "train.py"}},
    "code": 64 * "0",
    "training": {"epochs": 30},
}
HALF = {"target": "lr", "level": {"factor": 0.5}, "until": 20, "reason": "the loss jumped"}


def in_force(client: TestClient, job_id: str) -> tuple[Any, Any]:
    schedule = client.get(f"/api/v1/jobs/{job_id}/schedule").json()
    return schedule["optimizer"], schedule["optimizer_said_by"]


def test_half_of_the_rate_is_applied_once_every_rank_has_it_and_goes_back(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    answer = client.post(f"/api/v1/jobs/{job_id}/overrides", json=HALF)
    made = answer.json()
    assert (answer.status_code, made["target"], made["layers"]) == (202, "lr", ["*"])
    world.turn_until(lambda: world.override_row(job_id, made["id"]).state == "APPLIED")
    [view] = client.get(f"/api/v1/jobs/{job_id}/overrides").json()["items"]
    assert (view["level"], view["acks"], view["world_size"]) == ({"factor": 0.5}, 2, 2)
    assert in_force(client, job_id) == ({"lr_factor": 0.5}, {"lr": made["id"]})
    columns = client.get(f"/api/v1/jobs/{job_id}/history").json()["decisions"]
    assert columns["optimizer_overrides"]["lr"][-1] == made["id"]
    world.turn_until(lambda: world.override_row(job_id, made["id"]).state == "EXPIRED")
    assert in_force(client, job_id) == ({}, {})
    [audit] = client.get("/api/v1/audit", params={"action": "override.added"}).json()["items"]
    assert audit["after"]["level"] == {"factor": 0.5}


def test_the_next_override_of_a_setting_supersedes_the_one_before_and_no_other(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    first = world.override(job_id, target="lr", level=0.2)
    decay = world.override(job_id, target="weight_decay", level=0)
    second = world.override(job_id, target="lr", level=0.1)
    world.turn_until(lambda: world.override_row(job_id, second).state == "APPLIED")
    row = world.override_row(job_id, first)
    said = "the learning rate is held by newer override #3"
    assert (row.state, row.message) == ("SUPERSEDED", said)
    assert world.override_row(job_id, decay).state == "APPLIED"
    assert in_force(client, job_id) == (
        {"lr": 0.1, "weight_decay": 0.0},
        {"lr": second, "weight_decay": decay},
    )


@pytest.mark.parametrize(
    ("asked", "pointer", "sentence"),
    [
        ({"target": "lr", "level": 0.5}, "/level", "lr is 0.5; give a number from 0.001"),
        ({"target": "lr", "level": "low"}, "/level", "lr is 'low'; give a number from"),
        ({"target": "clip_norm", "level": 0}, "/level", "clip_norm is 0; give a number"),
        ({"target": "lr", "level": 0.1, "layers": ["fc1*"]}, "/layers", "leave out the layers"),
        ({"target": "momentum", "level": 0.1}, "/target", "'momentum'"),
        ({"target": "lr", "level": -0.1}, "/level", "level is -0.1; give a number from 0 to"),
        ({"target": "clip_norm", "level": 1e300}, "/level", "level is 1e+300; give a number"),
        ({"target": "lr", "level": {"factor": 1e9}}, "/level", "the factor of lr is 1000000000"),
        (
            {"target": "clip_norm", "level": 1e9},
            "/level",
            "clip_norm is 1000000000.0; give a number",
        ),
        ({"target": "lr", "level": {"factor": None}}, "/level", "level has factor None; give a"),
        ({"target": "lr", "level": {"factor": []}}, "/level", "level has factor []; give a finite"),
        ({"level": 0.5}, "/level", "unknown level 0.5; known are"),
    ],
)
def test_what_the_job_file_does_not_allow_is_refused_with_its_place(
    client: TestClient, world: World, *, asked: dict[str, Any], pointer: str, sentence: str
) -> None:
    job_id = world.submit(**LONG)
    answer = client.post(f"/api/v1/jobs/{job_id}/overrides", json=asked)
    assert answer.status_code == 422, answer.text
    [item] = answer.json()["errors"]
    assert item["pointer"] == pointer
    assert sentence in item["detail"]
    assert client.get(f"/api/v1/jobs/{job_id}/overrides").json()["items"] == []


def test_of_a_scripts_optimizer_only_the_rate_is_set(client: TestClient, world: World) -> None:
    job_id = world.submit(**SCRIPT)
    address = f"/api/v1/jobs/{job_id}/overrides"
    assert client.post(address, json=HALF).status_code == 202
    answer = client.post(address, json={"target": "weight_decay", "level": 0.1})
    [item] = answer.json()["errors"]
    assert (answer.status_code, item["pointer"]) == (422, "/target")
    assert (
        "sets weight_decay of its optimizer itself; change it there or override its lr"
        in (item["detail"])
    )
    page = client.get(f"/jobs/{job_id}").text
    assert 'value="lr"' in page
    assert 'value="weight_decay"' not in page
    assert 'value="weight_decay"' in client.get(f"/jobs/{world.submit(**LONG)}").text


def test_each_id_of_the_page_is_there_once(client: TestClient, world: World) -> None:
    job_id = world.submit(**LONG, batch={"high": 256})
    ids = re.findall(r' id="([^"]+)"', client.get(f"/jobs/{job_id}").text)
    assert sorted(ids) == sorted(set(ids))


@pytest.mark.parametrize(
    ("ranges", "pointer", "sentence"),
    [
        ({"lr": [0.4, 0.001]}, "/training/override_ranges/lr", "give the smaller number first"),
        ({"lr": [0.1]}, "/training/override_ranges/lr/1", "missing"),
        ({"momentum": [0, 1]}, "/training/override_ranges/momentum", "unknown key 'momentum'"),
    ],
)
def test_a_range_that_is_none_is_refused_with_its_place(
    client: TestClient, *, ranges: dict[str, Any], pointer: str, sentence: str
) -> None:
    spec = {"task": {"name": "digits-mlp"}, "training": {"override_ranges": ranges}}
    [item] = problem_of(client.post("/api/v1/jobs", json=spec), 422)["errors"]
    assert item["pointer"] == pointer
    assert sentence in item["detail"]
