"""Quotas, and what the queue says about each job that waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.access import Role
from accordion_service.domain.jobs.statuses import Reason, Status
from tests.api.team import ADMIN, JOBS, Team
from tests.api.world import DIGITS, World

QUOTAS = "/api/v1/quotas"
LONG = {"training": {"epochs": 400}}
VISION = {**LONG, "labels": {"team": "vision"}}


def put(client: TestClient, **body: Any) -> Any:
    return client.put(QUOTAS, json=body)


def queue(client: TestClient) -> dict[str, Any]:
    """Entries of the queue by id."""
    items = client.get("/api/v1/queue").json()["items"]
    return {entry["id"]: entry for entry in items}


def test_a_job_waits_for_the_quota_of_its_label_and_others_pass_it(
    client: TestClient, world: World
) -> None:
    assert put(client, label="team:vision", jobs=1).status_code == 200
    first, second = world.submit(**VISION), world.submit(**VISION)
    world.train(first)
    other = world.submit(**LONG)
    world.train(other)
    waits = world.job(second)
    assert (waits.status, waits.reason) == (Status.QUEUED, Reason.WAITING_FOR_QUOTA)
    assert waits.message.startswith("waits for the quota of label team:vision (1 job);")
    entry = queue(client)[second]
    assert entry["waits_for"] == [first]
    assert entry["remedies"] == ["a higher quota of label team:vision"]
    world.cancel(first)
    world.train(second)


def test_a_raised_or_removed_quota_lets_jobs_start_and_grow(
    client: TestClient, world: World
) -> None:
    put(client, user="admin", workers=1)
    first, second = world.submit(**LONG, workers={"max": 3}), world.submit(**LONG)
    world.train(first, workers=1)
    world.turn(3)
    assert world.job(second).reason == Reason.WAITING_FOR_QUOTA
    put(client, user="admin", workers=2)
    world.train(second)
    assert client.delete(QUOTAS, params={"user": "admin"}).json()["workers"] == 2
    world.train(first, workers=3)


def test_a_lowered_quota_takes_no_workers_from_jobs_that_run(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(**LONG, workers={"min": 2, "max": 2})
    world.train(job_id)
    put(client, user="*", workers=1)
    world.turn(10)
    assert (world.job(job_id).status, world.job(job_id).world_size) == (Status.RUNNING, 2)


def test_quotas_are_listed_with_what_is_used(client: TestClient, world: World) -> None:
    world.train(world.submit(**VISION, workers={"min": 2, "max": 2}))
    put(client, label="team:vision", gpus=4)
    put(client, user="admin", jobs=3, workers=8)
    put(client, user="*", jobs=1)
    assert [
        (one["user"], one["label"], one["jobs"], one["workers"], one["gpus"], one["used"])
        for one in client.get(QUOTAS).json()["items"]
    ] == [
        ("*", None, 1, None, None, None),
        ("admin", None, 3, 8, None, {"jobs": 1, "workers": 2, "gpus": 0}),
        (None, "team:vision", None, None, 4, {"jobs": 1, "workers": 2, "gpus": 0}),
    ]
    client.delete(QUOTAS, params={"user": "admin"})
    assert [one["used_by_user"] for one in client.get(QUOTAS).json()["items"]] == [
        {"admin": {"jobs": 1, "workers": 2, "gpus": 0}},
        {},
    ]


def test_all_quotas_that_block_a_job_are_named(client: TestClient, world: World) -> None:
    put(client, label="team:vision", jobs=1)
    put(client, user="*", workers=2)
    world.train(world.submit(**VISION, workers={"min": 2, "max": 2}))
    second = world.submit(**VISION)
    too_large = world.submit(**VISION, workers={"min": 3, "max": 3})
    world.turn(2)
    both = "of user admin (2 workers, the quota of any other user) and of label team:vision (1 job)"
    assert world.job(second).message == (
        f"waits for the quotas {both}; it starts when jobs that count towards them end, or with a"
        " higher quota"
    )
    assert "more than the quota of user admin (2 workers, " in world.job(too_large).message
    assert "allows; lower workers.min to 2, or" in world.job(too_large).message


def test_a_dry_run_names_no_quota_where_the_cluster_is_too_small(
    client: TestClient, world: World
) -> None:
    put(client, user="admin", workers=8)
    world.train(world.submit(**LONG, workers={"min": 2, "max": 2}, priority=100))
    world.turn()
    spec = {**DIGITS, "workers": {"min": 1, "max": 4}}
    found = client.post(JOBS, params={"dry_run": True}, json=spec).json()
    assert found["message"] == "starts with 2 of at most 4 workers"


def test_a_dry_run_names_the_quota_that_limits_growth(client: TestClient, world: World) -> None:
    put(client, user="admin", workers=2)
    world.turn()
    spec = {**DIGITS, "workers": {"min": 1, "max": 4}}
    found = client.post(JOBS, params={"dry_run": True}, json=spec).json()
    assert found["message"] == (
        "starts with 2 of at most 4 workers; the quota of user admin (2 workers) allows no more now"
    )


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"jobs": 1}, "give either 'user' or 'label'"),
        ({"user": "ada", "label": "a:b", "jobs": 1}, "give either 'user' or 'label'"),
        ({"user": "admin"}, "give at least one of 'jobs', 'workers' and 'gpus'"),
        ({"user": "nobody", "jobs": 1}, "there is no user 'nobody'"),
        (
            {"label": "vision", "jobs": 1},
            "'vision' is not a label; give it as key:value, such as",
        ),
        ({"user": "admin", "jobs": -1}, "greater than or equal to 0"),
    ],
)
def test_an_invalid_quota_is_refused(client: TestClient, body: dict[str, Any], detail: str) -> None:
    answer = put(client, **body)
    assert answer.status_code in {404, 422}
    assert detail in answer.text
    assert client.get(QUOTAS).json()["items"] == []


def test_removing_a_quota_needs_one(client: TestClient) -> None:
    missing = client.delete(QUOTAS, params={"label": "team:vision"})
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert "label team:vision has no quota" in missing.json()["detail"]
    assert client.delete(QUOTAS).status_code == 422


def test_a_quota_is_recorded_in_the_audit_log(team: Team) -> None:
    for jobs in (1, 2, 2):
        team.call(ADMIN, "PUT", QUOTAS, json={"user": "*", "jobs": jobs})
    team.call(ADMIN, "DELETE", QUOTAS, params={"user": "*"})
    newest, second, first = team.audit(subject="user *")
    assert (newest["action"], newest["before"]["jobs"], newest["after"]) == (
        "quota.removed",
        2,
        None,
    )
    assert (second["before"]["jobs"], second["after"]["jobs"]) == (1, 2)
    assert (first["action"], first["before"]) == ("quota.set", None)


def test_quotas_are_set_by_admins_and_seen_by_all(team: Team) -> None:
    oscar, eve = team.user("oscar", Role.OPERATOR), team.user("eve", Role.VIEWER)
    assert team.call(oscar, "PUT", QUOTAS, json={"user": "*", "jobs": 1}).status_code == 403
    assert team.call(eve, "GET", QUOTAS).status_code == 200


def test_the_queue_hides_for_which_jobs_a_quota_makes_another_users_job_wait(
    team: Team, world: World
) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    assert team.call(ADMIN, "PUT", QUOTAS, json={"label": "team:vision", "jobs": 1}).is_success
    spec = {**DIGITS, **VISION}
    holder = team.call(bob, "POST", JOBS, json=spec).json()["id"]
    world.train(holder)
    assert team.call(ada, "POST", JOBS, json=spec).is_success
    world.turn(3)
    [shown] = team.call(ADMIN, "GET", "/api/v1/queue").json()["items"]
    [hidden] = team.call(bob, "GET", "/api/v1/queue").json()["items"]
    assert (shown["waits_for"], hidden["waits_for"]) == ([holder], [])
    assert hidden["message"] == "waits for a quota"


def test_the_queue_names_only_visible_jobs_for_which_a_quota_makes_a_job_wait(
    team: Team, world: World
) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    assert team.call(ADMIN, "PUT", QUOTAS, json={"label": "team:vision", "jobs": 1}).is_success
    rows = [(bob, 50), (ada, 40), (ada, 30), (bob, 20)]
    holder, first, of_ada, of_bob = (
        team.call(token, "POST", JOBS, json={**DIGITS, **VISION, "priority": priority}).json()["id"]
        for token, priority in rows
    )
    world.train(holder)
    world.turn(3)

    def list_named(token: str, job_id: str) -> list[str]:
        items = team.call(token, "GET", "/api/v1/queue").json()["items"]
        return next(entry["waits_for"] for entry in items if entry["id"] == job_id)

    assert list_named(ADMIN, of_ada) == list_named(ADMIN, of_bob) == [first, holder]
    assert (list_named(ada, of_ada), list_named(bob, of_bob)) == ([first], [holder])


def test_the_queue_says_what_would_let_a_job_start(client: TestClient, world: World) -> None:
    running = world.submit(**LONG, workers={"min": 2, "max": 3}, priority=60)
    world.train(running, workers=3)
    head = world.submit(**LONG, workers={"min": 2, "max": 2})
    behind = world.submit(**LONG)
    world.turn(2)
    entries = queue(client)
    assert entries[head]["waits_for"] == [running]
    assert entries[head]["remedies"] == [
        "a minimum of 1 worker",
        f"priority 61: it then takes workers from job {running}",
    ]
    assert entries[behind]["waits_for"] == [head]
    assert entries[behind]["remedies"] == ["priority 51: it then starts first"]


def test_following_a_remedy_lets_the_job_start(client: TestClient, world: World) -> None:
    world.train(world.submit(**LONG, workers={"min": 2, "max": 3}), workers=3)
    head, behind = world.submit(**LONG, workers={"min": 2, "max": 2}), world.submit(**LONG)
    world.turn(2)
    client.patch(f"{JOBS}/{behind}", json={"priority": 51})
    world.train(behind)
    assert world.job(head).status == Status.QUEUED
    world.cancel(behind)
    client.patch(f"{JOBS}/{head}", json={"priority": 51})
    world.train(head, workers=2)


def test_a_dry_run_knows_that_less_important_jobs_give_workers_back(
    client: TestClient, world: World
) -> None:
    running = world.submit(**LONG, workers={"min": 1, "max": 4})
    world.train(running, workers=4)
    found = client.post(JOBS, params={"dry_run": True}, json={**DIGITS, "priority": 80}).json()
    assert found["would_wait"] is False
    assert found["message"] == (f"starts once less important jobs have released workers: {running}")
    equal = client.post(JOBS, params={"dry_run": True}, json=DIGITS).json()
    assert equal["would_wait"] is True


def test_age_raises_a_job_in_the_queue_but_takes_no_workers(
    tmp_path: Path, database_url: str
) -> None:
    world = World(tmp_path, database_url=database_url, priority_per_hour=10)
    running = world.submit(**LONG, workers={"min": 1, "max": 4})
    world.train(running, workers=4)
    old = world.submit(**LONG, priority=40)
    world.clock.now += 2 * 3600
    new = world.submit(**LONG, priority=55)
    rows = world.queue.waiting(world.settings.priority_per_hour / 3600)
    assert [row.id for row in rows] == [old, new]
    world.turn(5)
    assert (world.job(old).status, world.job(running).world_size) == (Status.QUEUED, 4)
    world.close()
