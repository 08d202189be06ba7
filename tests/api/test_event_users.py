"""Events name the user whose request they are or complete, and nobody where the service or the
workers decide.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import select

from accordion_service.domain.access import Caller, Scope
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.store.tables.models import DeliveryRow, UserRow, WebhookRow
from accordion_service.store.writes.overrides import JobOverrides
from accordion_service.store.writes.steering import JobLifecycle, accept_any
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


def test_only_the_new_limits_of_a_resize_name_a_user(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id, workers=2)
    steer(world, "ada").resize(job_id, 1, 3, check=accept_any)
    world.train(job_id, workers=3)
    assert {"granted", "resizing"} <= {
        event.data["what"] for event in world.events(job_id, "workers")
    }
    assert named(world, job_id, "workers", "what") == [("allowed", "ada")]
    assert named(world, job_id, "status", "status") == [("QUEUED", "admin")]


def reasons(world: World, job_id: str) -> list[str]:
    return [event.data["reason"] for event in world.events(job_id, "status")]


def test_a_preemption_names_nobody(preempting: World) -> None:
    job_id = preempting.submit(**LONG, workers={"min": 4, "max": 4})
    preempting.train(job_id)
    preempting.submit(**LONG, priority=80)
    preempting.reach(job_id, Status.PAUSING)
    preempting.reach(job_id, Status.QUEUED)
    assert reasons(preempting, job_id).count(Reason.PREEMPTED) == 2
    assert named(preempting, job_id, "status", "status") == [("QUEUED", "admin")]


def test_a_lost_attempt_names_nobody(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.runtime.lose(job_id)
    world.turn_until(lambda: world.job(job_id).attempt == 2)
    assert Reason.WORKERS_LOST in reasons(world, job_id)
    assert named(world, job_id, "status", "status") == [("QUEUED", "admin")]


def test_an_end_by_the_time_limit_names_nobody(world: World) -> None:
    job_id = world.submit(**LONG, limits={"training_seconds": 2})
    assert world.finish(job_id).reason == Reason.TIMED_OUT
    assert named(world, job_id, "status", "status") == [("QUEUED", "admin")]
    assert named(world, job_id, "end", "status") == []


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
    bob = JobOverrides(world.database, world.clock, caller("bob"))
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


def test_a_cancellation_ends_overrides_in_the_name_of_the_user(world: World) -> None:
    job_id = world.submit(start_at="2999-01-01T00:00:00Z")
    world.override(job_id)
    steer(world, "ada").cancel(job_id, accept_any, grace_s=GRACE_S)
    assert named(world, job_id, "override", "state") == [("PENDING", "admin"), ("EXPIRED", "ada")]


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
