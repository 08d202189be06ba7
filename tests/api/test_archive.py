"""Ended jobs are archived: lists leave them out, and nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.access import Role
from accordion_service.domain.jobs.statuses import Status
from tests.api.team import JOBS, Team
from tests.api.world import World

ACTIONS = "/api/v1/job-actions"


def ended(world: World, **spec: Any) -> str:
    job_id = world.submit(**spec)
    world.finish(job_id)
    return job_id


def listed(client: TestClient, **params: Any) -> list[str]:
    found = client.get(JOBS, params=params)
    assert found.status_code == 200, found.text
    return [job["id"] for job in found.json()["items"]]


def change(client: TestClient, job_id: str, what: str) -> Any:
    answer = client.post(f"{JOBS}/{job_id}/{what}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_archived_job_is_left_out_of_lists_until_it_is_unarchived(
    client: TestClient, world: World
) -> None:
    kept, gone = ended(world), ended(world)
    assert change(client, gone, "archive")["archived"] is True
    assert listed(client) == [kept]
    assert listed(client, archived="true") == [gone]
    assert listed(client, archived="any") == [gone, kept]
    assert client.get(f"{JOBS}/{gone}").json()["status"] == "SUCCEEDED"
    assert change(client, gone, "unarchive")["archived"] is False
    assert listed(client) == [gone, kept]


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.PAUSED])
def test_only_an_ended_job_is_archived(client: TestClient, world: World, status: Status) -> None:
    job_id = world.submit(training={"epochs": 400})
    if status is Status.RUNNING:
        world.train(job_id)
    if status is Status.PAUSED:
        world.pause(job_id)
    answer = client.post(f"{JOBS}/{job_id}/archive")
    assert (answer.status_code, world.job(job_id).archived) == (409, False)
    assert "cancel it, or wait until it has ended" in answer.json()["detail"]


def test_repeating_a_request_changes_nothing(client: TestClient, world: World) -> None:
    job_id = ended(world)
    change(client, job_id, "unarchive")
    version = world.job(job_id).version
    change(client, job_id, "archive")
    change(client, job_id, "archive")
    assert world.job(job_id).version == version + 1


def test_a_request_for_another_state_of_the_job_is_refused(
    client: TestClient, world: World
) -> None:
    job_id = ended(world)
    old = client.get(f"{JOBS}/{job_id}").headers["ETag"]
    change(client, job_id, "archive")
    answer = client.post(f"{JOBS}/{job_id}/unarchive", headers={"If-Match": old})
    assert (answer.status_code, world.job(job_id).archived) == (412, True)


def test_pages_of_archived_and_other_jobs_have_each_job_once(
    client: TestClient, world: World
) -> None:
    jobs = [ended(world, training={"epochs": 1}) for _ in range(7)]
    for job_id in jobs[1::2]:
        change(client, job_id, "archive")
    for archived, expected in (
        ("any", jobs),
        ("true", jobs[1::2]),
        ("false", jobs[::2]),
    ):
        seen: list[str] = []
        cursor: str | None = None
        while True:
            params = {"archived": archived, "limit": 2, **({"cursor": cursor} if cursor else {})}
            page = client.get(JOBS, params=params).json()
            seen += [job["id"] for job in page["items"]]
            if (cursor := page["next_cursor"]) is None:
                break
        assert seen == expected[::-1], archived


def test_other_filters_apply_to_archived_jobs(client: TestClient, world: World) -> None:
    named = ended(world, name="digits", labels={"sweep": "lr"})
    other = ended(world, name="other")
    for job_id in (named, other):
        change(client, job_id, "archive")
    for params in ({"name": "digits"}, {"label": "sweep:lr"}, {"name_prefix": "dig"}):
        assert listed(client, archived="true", **params) == [named]
        assert listed(client, archived="any", **params) == [named]
        assert listed(client, **params) == []
    assert listed(client, archived="any", status="SUCCEEDED", id=other) == [other]


def test_another_value_of_the_filter_is_refused(client: TestClient) -> None:
    answer = client.get(JOBS, params={"archived": "yes"})
    assert (answer.status_code, "query/archived" in answer.text) == (422, True)


def test_a_retry_unarchives_a_job(client: TestClient, world: World) -> None:
    job_id = world.submit(training={"epochs": 400})
    world.cancel(job_id)
    change(client, job_id, "archive")
    assert client.post(f"{JOBS}/{job_id}/retry").json()["archived"] is False
    assert listed(client) == [job_id]
    changes = [event.data for event in world.events(job_id, "archive")]
    assert [change["archived"] for change in changes] == [True, False]


def test_the_history_says_who_archived_a_job(team: Team) -> None:
    ada = team.user("ada")
    job_id = team.submit(ada)
    team.call(ada, "POST", f"{JOBS}/{job_id}/cancel")
    team.call(ada, "POST", f"{JOBS}/{job_id}/archive")
    stream = team.call(ada, "GET", f"{JOBS}/{job_id}/events").text
    kinds = [line[7:] for line in stream.splitlines() if line.startswith("event: ")]
    assert kinds[-2:] == ["end", "archive"]
    newest = [line[6:] for line in stream.splitlines() if line.startswith("data: ")][-1]
    assert json.loads(newest)["data"] == {"archived": True, "by": "ada"}
    [entry] = team.audit(subject=job_id, action="job.archived")
    assert (entry["user"], entry["after"]) == ("ada", {"archived": True})


def test_a_job_of_another_user_is_not_archived(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob", Role.VIEWER, scopes=["read", "read:all"])
    eve = team.user("eve")
    job_id = team.submit(ada)
    team.call(ada, "POST", f"{JOBS}/{job_id}/cancel")
    for token, status in ((bob, 403), (eve, 404)):
        assert team.call(token, "POST", f"{JOBS}/{job_id}/archive").status_code == status


def test_ended_jobs_with_a_label_are_archived_together(client: TestClient, world: World) -> None:
    sweep = {"labels": {"sweep": "lr"}, "training": {"epochs": 1}}
    jobs, other = [ended(world, **sweep), ended(world, **sweep)], ended(world)
    running = world.submit(**{**sweep, "training": {"epochs": 400}})
    body = {"action": "archive", "labels": {"sweep": "lr"}}
    planned = client.post(ACTIONS, json={**body, "dry_run": True}).json()
    assert [item["id"] for item in planned["items"]] == jobs[::-1]
    assert listed(client, archived="true") == []
    done = client.post(ACTIONS, json=body).json()
    assert [(item["id"], item["error"]) for item in done["items"]] == [
        (job_id, None) for job_id in jobs[::-1]
    ]
    assert client.post(ACTIONS, json=body).json()["items"] == [], "repeating has no effect"
    assert listed(client) == [running, other]
    client.post(ACTIONS, json={**body, "action": "unarchive"})
    assert listed(client, archived="true") == []


@pytest.fixture
def forgetful(tmp_path: Path, database_url: str) -> Iterator[World]:
    """A service that keeps one ended job, and each for an hour."""
    world = World(tmp_path, database_url=database_url, job_retention_s=3600, max_ended_jobs=1)
    yield world
    world.close()


def test_archived_jobs_are_deleted_by_age_and_not_by_number(forgetful: World) -> None:
    from accordion_service.domain.access import FULL_ACCESS
    from accordion_service.store.writes.archiving import JobArchive

    jobs = JobArchive(forgetful.database, forgetful.clock, FULL_ACCESS)
    archived = [ended(forgetful, training={"epochs": 1}) for _ in range(2)]
    for job_id in archived:
        jobs.archive(job_id, lambda _: None)
    others = [ended(forgetful, training={"epochs": 1}) for _ in range(3)]
    forgetful.clock.now += 60
    forgetful.turn_until(lambda: forgetful.jobs.get(others[1]) is None)
    kept = [one for one in archived + others if forgetful.jobs.get(one) is not None]
    assert kept == [*archived, others[2]]
    forgetful.clock.now += 3600
    forgetful.turn_until(lambda: forgetful.jobs.known(archived) == set())
