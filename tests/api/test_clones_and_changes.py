"""Clones of jobs, changes of how they are listed, and the filters of the list."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.test_code import GOOD, upload
from tests.api.world import World

JOBS = "/api/v1/jobs"


def clone(client: TestClient, job_id: str, **changes: Any) -> dict[str, Any]:
    response = client.post(f"{JOBS}/{job_id}/clone", json={"spec": changes})
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    assert response.headers["location"] == f"{JOBS}/{made['id']}"
    return made


def test_a_clone_has_the_spec_of_the_job_and_trains_by_itself(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(name="first", training={"epochs": 2}, labels={"team": "a"})
    world.finish(job_id)
    made = clone(client, job_id)
    original = client.get(f"{JOBS}/{job_id}").json()
    assert (made["spec"], made["cloned_from"]) == (original["spec"], job_id)
    assert (made["name"], made["labels"]) == ("first", {"team": "a"})
    world.finish(made["id"])
    assert client.get(f"{JOBS}/{made['id']}").json()["status"] == "SUCCEEDED"


def test_a_dry_run_of_a_clone_answers_as_the_clone_would_and_stores_nothing(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(name="first", training={"epochs": 2}, workers={"min": 1, "max": 1})
    ask = {"params": {"dry_run": True}, "json": {"spec": {"workers": {"cpus": 999}}}}
    found = client.post(f"{JOBS}/{job_id}/clone", **ask)
    assert (found.status_code, "location" in found.headers) == (200, False)
    assert (found.json()["would_wait"], len(client.get(JOBS).json()["items"])) == (True, 1)
    assert clone(client, job_id, **ask["json"]["spec"])["spec"] == found.json()["spec"]


def test_a_clone_merges_changes_into_the_spec(client: TestClient, world: World) -> None:
    job_id = world.submit(training={"epochs": 2, "seed": 7}, compression={"method": "topk"})
    made = clone(client, job_id, training={"epochs": 9}, compression=None)["spec"]
    assert (made["training"]["epochs"], made["training"]["seed"]) == (9, 7)
    assert made["compression"]["method"] == "powersgd", "the default"


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"training": {"epochs": 0}}, "/spec/training/epochs"),
        ({"task": None}, "/spec/task"),
        ({"trainings": {}}, "/spec/trainings"),
        ({"code": "0" * 64}, "/spec/code"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_clone_with_a_wrong_spec_is_refused_at_its_field(
    client: TestClient, world: World, changes: dict[str, Any], *, pointer: str, dry_run: bool
) -> None:
    job_id = world.submit()
    ask = {"params": {"dry_run": dry_run}, "json": {"spec": changes}}
    response = client.post(f"{JOBS}/{job_id}/clone", **ask)
    assert response.status_code == 422
    assert pointer in {error["pointer"] for error in response.json()["errors"]}
    assert len(client.get(JOBS).json()["items"]) == 1


def test_a_clone_with_another_method_has_its_default_options(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(compression={"method": "powersgd", "low": {"rank": 3}})
    other = clone(client, job_id, compression={"method": "topk"})["spec"]["compression"]
    default = client.post(
        JOBS, json={"task": {"name": "digits-mlp"}, "compression": {"method": "topk"}}
    ).json()["spec"]["compression"]
    assert other == default
    own = clone(client, job_id, compression={"method": "topk", "low": {"density": 0.5}})
    assert own["spec"]["compression"]["low"]["density"] == 0.5
    adam = clone(client, job_id, training={"optimizer": {"name": "adamw", "lr": 0.01}})
    assert adam["spec"]["training"]["optimizer"]["lr"] == 0.01


@pytest.mark.parametrize(
    ("part", "before", "after"),
    [
        ("optimizer", {"name": "adamw", "lr": 0.01, "betas": [0.8, 0.9]}, {"name": "sgd"}),
        ("lr_decay", {"at": [2, 3]}, {"shape": "wsd", "part": 0.5}),
    ],
)
def test_a_clone_with_another_optimizer_or_schedule_has_its_defaults(
    client: TestClient, world: World, part: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    job_id = world.submit(training={part: before})
    made = clone(client, job_id, training={part: after})["spec"]["training"][part]
    assert made == world.job(world.submit(training={part: after})).spec["training"][part]


def test_a_clone_has_the_present_name_labels_and_priority(client: TestClient, world: World) -> None:
    job_id = world.submit(name="old", labels={"team": "a"})
    change = {"name": "new", "labels": {"stage": "b"}, "priority": 70}
    client.patch(f"{JOBS}/{job_id}", json=change)
    made = clone(client, job_id)
    labels = {"team": "a", "stage": "b"}
    assert (made["name"], made["labels"], made["priority"]) == ("new", labels, 70)
    unnamed = world.submit()
    assert clone(client, unnamed)["name"] != world.job(unnamed).name


def test_a_clone_is_no_guest(client: TestClient, world: World) -> None:
    refused = client.post(
        f"{JOBS}/{world.submit()}/clone", json={"spec": {"task": {"name": "guest"}}}
    )
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/spec/task/name"]


def test_a_clone_keeps_the_code_of_its_job(client: TestClient, world: World) -> None:
    sha = upload(client, GOOD).json()["sha256"]
    job_id = world.submit(code=sha)
    assert clone(client, job_id)["spec"]["code"] == sha


def test_repeating_a_clone_with_its_key_returns_the_same_job(
    client: TestClient, world: World
) -> None:
    job_id, other = world.submit(), world.submit()
    key = {"Idempotency-Key": "once"}
    first, again = (client.post(f"{JOBS}/{job_id}/clone", json={}, headers=key) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert (
        client.post(f"{JOBS}/{other}/clone", json={}, headers=key).json()["id"]
        != first.json()["id"]
    )


def test_a_change_of_name_labels_and_priority_is_shown_and_raises_the_etag(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(name="old", labels={"team": "a"})
    before = client.get(f"{JOBS}/{job_id}").headers["etag"]
    change = {"name": "new", "labels": {"stage": "b"}, "priority": 80}
    changed = client.patch(f"{JOBS}/{job_id}", json=change)
    assert changed.status_code == 200
    assert changed.headers["etag"] != before
    view = changed.json()
    labels = {"team": "a", "stage": "b"}
    assert (view["name"], view["labels"], view["priority"]) == ("new", labels, 80)
    assert view["spec"]["name"] == "old", "what was submitted stays as it was"
    again = client.patch(f"{JOBS}/{job_id}", json=change)
    assert again.headers["etag"] == changed.headers["etag"]


def test_what_a_change_leaves_out_stays(client: TestClient, world: World) -> None:
    job_id = world.submit(name="kept", labels={"team": "a"})
    view = client.patch(f"{JOBS}/{job_id}", json={"priority": 3}).json()
    assert (view["name"], view["labels"], view["priority"]) == ("kept", {"team": "a"}, 3)
    without = client.patch(f"{JOBS}/{job_id}", json={"labels": {"team": None, "b": "c"}}).json()
    assert without["labels"] == {"b": "c"}


def test_an_ended_job_can_still_be_renamed(client: TestClient, world: World) -> None:
    job_id = world.submit(training={"epochs": 1})
    world.finish(job_id)
    assert client.patch(f"{JOBS}/{job_id}", json={"name": "done"}).json()["name"] == "done"


def test_a_change_based_on_an_old_etag_is_refused(client: TestClient, world: World) -> None:
    job_id = world.submit(name="old")
    etag = client.get(f"{JOBS}/{job_id}").headers["etag"]
    client.patch(f"{JOBS}/{job_id}", json={"priority": 60})
    headers = {"If-Match": etag}
    refused = client.patch(f"{JOBS}/{job_id}", json={"name": "new"}, headers=headers)
    assert refused.status_code == 412
    assert client.get(f"{JOBS}/{job_id}").json()["name"] == "old"


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"priority": 101}, "/priority"),
        ({"name": "no spaces"}, "/name"),
        ({"labels": {"a b": "c"}}, "/labels"),
        ({"labels": {f"k{i}": "v" for i in range(33)}}, "/labels"),
        ({"spec": {}}, "/spec"),
    ],
)
def test_a_wrong_change_is_refused_at_its_field(
    client: TestClient, world: World, change: dict[str, Any], pointer: str
) -> None:
    refused = client.patch(f"{JOBS}/{world.submit()}", json=change)
    assert refused.status_code == 422
    assert any(error["pointer"].startswith(pointer) for error in refused.json()["errors"])


def test_a_new_priority_changes_the_order_of_the_queue(client: TestClient, world: World) -> None:
    first, second = world.submit(), world.submit()
    client.patch(f"{JOBS}/{second}", json={"priority": 90})
    order = [entry["id"] for entry in client.get("/api/v1/queue").json()["items"]]
    assert order == [second, first]


def test_the_list_is_filtered_by_the_start_of_names_kind_and_time(
    client: TestClient, world: World
) -> None:
    def listed(**query: Any) -> list[str]:
        found = client.get(JOBS, params=query)
        assert found.status_code == 200, found.text
        return [job["name"] for job in found.json()["items"]]

    for name in ("run-1", "Run-2", "run_3"):
        world.clock.now += 10.0
        world.submit(name=name)
    assert listed(name_prefix="run") == ["run_3", "run-1"]
    assert listed(name_prefix="run_") == ["run_3"], "no character is a wildcard"
    assert listed(kind="guest") == []
    at = datetime.fromtimestamp(world.clock.now - 10.0, UTC).isoformat()
    assert listed(created_after=at) == ["run_3", "Run-2"]
    assert listed(created_before=at) == ["run-1"]
    for wrong in ("2026-01-01T00:00:00", "0.5", "1800000000"):
        assert client.get(JOBS, params={"created_after": wrong}).status_code == 422


def test_the_list_is_filtered_by_each_field_of_a_job(client: TestClient, world: World) -> None:
    def listed(**query: Any) -> list[str]:
        found = client.get(JOBS, params=query)
        assert found.status_code == 200, found.text
        return [job["id"] for job in found.json()["items"]]

    def when(seconds: float) -> str:
        return datetime.fromtimestamp(seconds, UTC).isoformat()

    small = {"training": {"epochs": 1}}
    ended = world.submit(**small, priority=0, compression={"method": "topk"})
    world.finish(ended)
    row = world.job(ended)
    assert row.started_at is not None
    assert row.ended_at is not None
    clone = client.post(
        f"{JOBS}/{ended}/clone", json={"spec": {"policy": {"name": "fixed"}}}
    ).json()
    client.post(f"{JOBS}/{clone['id']}/pause")
    assert listed(priority=0, cloned_from=ended) == listed(cloned_from=ended) == [clone["id"]]
    assert listed(desired="PAUSE") == listed(reason="PAUSED_BY_USER") == [clone["id"]]
    assert listed(policy="fixed", task="digits-mlp", method="topk", workers=0) == [clone["id"]]
    assert listed(method="topk") == [clone["id"], ended]
    assert listed(started_after=when(row.started_at)) == [ended]
    assert listed(ended_after=when(row.ended_at), ended_before=when(row.ended_at + 1)) == [ended]
    assert listed(started_before=when(row.started_at)) == []
    assert listed(ended_before=when(row.ended_at)) == []
    assert client.get(JOBS, params={"workers": -1}).status_code == 422
