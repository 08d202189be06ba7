"""Events name the user who caused them, and nobody where the service or the workers act by
themselves.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.domain.access import Caller, Scope
from service.domain.jobs import Status
from service.store.events import append_event
from service.store.job_lifecycle import JobLifecycle, accept_any
from service.store.job_submission import JobSubmission
from service.store.models import DeliveryRow, JobRow, UserRow, WebhookRow
from service.store.requesters import find_resizer
from tests.api.team import JOBS
from tests.api.world import World

LONG = {"training": {"epochs": 400}}
GRACE_S = 5.0


def steer(world: World, user: str) -> JobLifecycle:
    """Requests of a user for jobs."""
    return JobLifecycle(world.database, world.clock, caller(user))


def caller(user: str) -> Caller:
    return Caller(user=user, scopes=frozenset(Scope))


def named(world: World, job_id: str, kind: str, key: str) -> list[tuple[Any, str]]:
    """What happened in the events that name a user, and the user."""
    data = [event.data for event in world.events(job_id, kind)]
    return [(one[key], one["by"]) for one in data if "by" in one]


def test_status_events_name_who_asked_for_the_change(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    steer(world, "ada").pause(job_id, accept_any, grace_s=GRACE_S)
    world.reach(job_id, Status.PAUSED)
    steer(world, "bob").resume(job_id, accept_any)
    world.train(job_id)
    steer(world, "ada").cancel(job_id, accept_any, grace_s=GRACE_S)
    world.finish(job_id)
    assert named(world, job_id, "status", "status") == [
        ("QUEUED", "admin"),
        ("PAUSING", "ada"),
        ("PAUSED", "ada"),
        ("QUEUED", "bob"),
        ("STOPPING", "ada"),
        ("CANCELLED", "ada"),
    ]
    assert named(world, job_id, "end", "status") == [("CANCELLED", "ada")]
    steer(world, "eve").retry(job_id, accept_any)
    steer(world, "bob").cancel(job_id, accept_any, grace_s=GRACE_S)
    last = named(world, job_id, "status", "status")[-2:]
    assert last == [("QUEUED", "eve"), ("CANCELLED", "bob")]


def test_an_end_that_nobody_asked_for_names_nobody(world: World) -> None:
    job_id = world.submit()
    world.finish(job_id)
    assert named(world, job_id, "status", "status") == [("QUEUED", "admin")]
    assert named(world, job_id, "end", "status") == []


def test_the_events_of_a_resize_name_who_asked_for_it(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id, workers=2)
    steer(world, "ada").resize(job_id, 1, 3, check=accept_any)
    world.train(job_id, workers=3)
    assert named(world, job_id, "workers", "what") == [
        ("allowed", "ada"),
        ("granted", "ada"),
        ("resizing", "ada"),
    ]
    assert ("RESIZING", "ada") in named(world, job_id, "status", "status")


def limits(least: int, most: int, *before: int, by: str = "ada") -> dict[str, Any]:
    previous = dict(zip(("previous_min", "previous_max"), before, strict=False))
    return {"what": "allowed", "min": least, "max": most, **previous, "by": by}


@pytest.mark.parametrize(
    ("events", "workers", "user"),
    [
        ([limits(1, 4, 1, 2)], 4, "ada"),
        ([limits(1, 1, 1, 2)], 1, "ada"),
        ([limits(1, 4, 1, 2), limits(1, 5, 1, 4, by="bob")], 4, "ada"),
        ([limits(1, 4, 1, 3)], 3, None),
        ([limits(1, 4, 1, 2), {"what": "granted", "new": 3}], 4, None),
        ([limits(1, 4, 1, 2), {"what": "started", "cause": "start"}], 4, None),
        ([limits(1, 4)], 4, None),
        ([], 3, None),
    ],
)
def test_an_allocation_names_whose_limits_force_it(
    world: World, events: list[dict[str, Any]], workers: int, user: str | None
) -> None:
    job_id = world.submit()
    with world.database.write() as session:
        job = session.get_one(JobRow, job_id)
        job.workers = 2
        for data in events:
            append_event(session, job, "workers", data=data, now=world.clock())
        assert find_resizer(session, job, workers=workers) == user


def test_a_change_of_the_listing_is_one_event_with_before_and_after(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(name="old", labels={"team": "a"})
    change = {"name": "new", "labels": {"team": None}, "priority": 50}
    for _ in range(2):
        client.patch(f"{JOBS}/{job_id}", json=change).raise_for_status()
    [event] = world.events(job_id, "change")
    assert event.data == {
        "before": {"name": "old", "labels": {"team": "a"}},
        "after": {"name": "new", "labels": {}},
        "by": "admin",
    }


def test_a_change_of_an_ended_job_follows_its_end(client: TestClient, world: World) -> None:
    job_id = world.submit(training={"epochs": 1})
    world.finish(job_id)
    client.patch(f"{JOBS}/{job_id}", json={"name": "done"}).raise_for_status()
    stream = client.get(f"{JOBS}/{job_id}/events").text
    kinds = [line[7:] for line in stream.splitlines() if line.startswith("event: ")]
    assert kinds[-2:] == ["end", "change"]


def test_overrides_and_their_decisions_name_users(client: TestClient, world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    override_id = world.override(job_id)
    world.turn_until(lambda: world.override_row(job_id, override_id).state == "APPLIED")
    bob = JobSubmission(world.database, world.clock, caller("bob"))
    assert bob.cancel_override(job_id, override_id, accept_any).message == "cancelled by bob"
    assert named(world, job_id, "override", "state") == [("PENDING", "admin"), ("CANCELLED", "bob")]
    assert world.events(job_id, "override")[-1].data["requested_by"] == "admin"
    users = {override_id: "admin"}
    told = [event.data.get("user_by_override") for event in world.events(job_id, "decision")]
    assert users in told
    items = client.get(f"{JOBS}/{job_id}/decisions").json()["items"]
    for item in items:
        holds = override_id in item["decision"]["override_by_layer"].values()
        assert item["user_by_override"] == (users if holds else {})
    assert any(item["user_by_override"] for item in items)


def test_messages_to_webhooks_name_who_caused_the_change(world: World) -> None:
    job_id = world.submit(**LONG)
    with world.database.write() as session:
        session.merge(UserRow(name="admin", role="admin", created_at=world.clock()))
        hook = {"user": "admin", "jobs_of": "admin", "name": "hook", "url": "https://example.com"}
        statuses = ["PAUSED", "QUEUED", "CANCELLED"]
        more = {"service_url": "", "encrypted": "", "created_at": world.clock()}
        session.add(WebhookRow(id="w", statuses=statuses, **hook, **more))
    steer(world, "ada").pause(job_id, accept_any, grace_s=GRACE_S)
    steer(world, "bob").resume(job_id, accept_any)
    steer(world, "ada").cancel(job_id, accept_any, grace_s=GRACE_S)
    with world.database.read() as session:
        rows = session.scalars(select(DeliveryRow).order_by(DeliveryRow.id))
        sent = [json.loads(row.body)["data"] for row in rows]
    assert [(data["status"], data["by"]) for data in sent] == [
        ("PAUSED", "ada"),
        ("QUEUED", "bob"),
        ("CANCELLED", "ada"),
    ]
