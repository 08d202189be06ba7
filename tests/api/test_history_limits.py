"""Long jobs keep their newest events and output; old audit entries and idempotency keys go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from accordion_service.api.app import create_app
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.scheduler.retention import KEY_RETENTION_S, TOKEN_RETENTION_S
from accordion_service.store.tables.models import (
    AuditRow,
    EventRow,
    IdempotencyRow,
    LogChunkRow,
    TokenRow,
)
from accordion_service.store.tables.stored_documents import layer_names
from tests.api.conftest import LOCAL
from tests.api.team import JOBS
from tests.api.test_jobs import walk
from tests.api.world import DIGITS, World

MAX_EVENTS = 50
MAX_LOG_BYTES = 3000
DAY_S = 86_400.0
LONG = {"training": {"epochs": 100_000}}


@pytest.fixture
def small(tmp_path: Path, database_url: str) -> Iterator[World]:
    """A service that keeps little of each job, and audit entries for a day."""
    world = World(
        tmp_path,
        database_url=database_url,
        max_events=MAX_EVENTS,
        max_log_bytes=MAX_LOG_BYTES,
        audit_retention_s=DAY_S,
    )
    yield world
    world.close()


@pytest.fixture
def small_client(small: World) -> Iterator[TestClient]:
    app = create_app(small.settings, small.clock)
    with TestClient(app, base_url=LOCAL) as client:
        yield client
    app.state.accordion.database.close()


def count(world: World, table: type) -> int:
    with world.database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def frames(text: str) -> list[tuple[int | None, str, dict]]:
    """Numbered events of a stream: number, type and data."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "data" in fields and fields["event"] != "progress":
            number = int(fields["id"]) if "id" in fields else None
            found.append((number, fields["event"], json.loads(fields["data"])))
    return found


def test_newest_events_and_output_are_kept_without_gaps(small: World) -> None:
    job_id = small.submit(**LONG)
    most_events = most_bytes = 0
    for _ in range(80):
        small.turn()
        job = small.job(job_id)
        with small.database.read() as session:
            events = list(session.scalars(select(EventRow.seq).where(EventRow.job_id == job_id)))
            chunks = list(session.scalars(select(LogChunkRow).where(LogChunkRow.job_id == job_id)))
        assert sorted(events) == list(range(job.events_removed + 1, job.event_seq + 1))
        numbers = sorted(chunk.number for chunk in chunks)
        assert numbers == list(range(job.log_number - len(chunks) + 1, job.log_number + 1))
        assert job.log_bytes == sum(len(json.dumps(chunk.lines)) for chunk in chunks)
        most_events, most_bytes = max(most_events, len(events)), max(most_bytes, job.log_bytes)
    assert small.job(job_id).events_removed > 0
    assert small.job(job_id).log_bytes_removed > 0
    assert most_bytes <= MAX_LOG_BYTES
    # Events of requests are added between two reports.
    assert MAX_EVENTS * 0.8 < most_events <= MAX_EVENTS + 1


def test_streams_of_a_long_job_begin_with_what_is_kept(
    small_client: TestClient, small: World
) -> None:
    job_id = small.submit(training={"epochs": 60})
    small.finish(job_id)
    job = small.job(job_id)
    gap, *events = frames(small_client.get(f"{JOBS}/{job_id}/events").text)
    assert gap[:2] == (job.events_removed, "gap")
    assert (gap[2]["from_seq"], gap[2]["to_seq"]) == (1, job.events_removed)
    assert "ACCORDION_MAX_EVENTS" in gap[2]["why"]
    assert [number for number, _, _ in events] == list(
        range(job.events_removed + 1, job.event_seq + 1)
    )
    assert events[-1][1] == "end"
    late = frames(small_client.get(f"{JOBS}/{job_id}/events", headers={"Last-Event-ID": "7"}).text)
    assert late[0][2]["from_seq"] == 8
    assert late[1:] == events
    kept = small_client.get(f"{JOBS}/{job_id}/events?after={job.events_removed}").text
    assert frames(kept) == events, "a client that has all removed events is told of no gap"
    newest = small_client.get(f"{JOBS}/{job_id}/events?last=10000").text
    assert frames(newest) == events, "a client that asks for the newest ones misses none"
    lines = small_client.get(f"{JOBS}/{job_id}/logs").text.splitlines()
    removed = f"[accordion] {format_bytes(job.log_bytes_removed)} of older output were removed"
    assert lines[0].startswith(removed)
    assert lines[-1] == "[rank 0] epoch 59 ended"
    path = f"{JOBS}/{job_id}/logs?follow=true"
    [(first, _, one), *rest] = frames(small_client.get(path).text)
    assert one["removed_bytes"] == job.log_bytes_removed
    assert first is not None
    assert first > 1
    assert {data["removed_bytes"] for _, kind, data in rest if kind == "log"} == {0}
    again = frames(small_client.get(path, headers={"Last-Event-ID": str(first)}).text)
    assert again == rest, "a client that has the first chunk is not told of a gap"


def test_a_job_within_the_limits_keeps_all(client: TestClient, world: World) -> None:
    job = world.finish(world.submit())
    assert (job.events_removed, job.log_bytes_removed) == (0, 0)
    assert "older output" not in client.get(f"{JOBS}/{job.id}/logs").text
    chunks = frames(client.get(f"{JOBS}/{job.id}/logs?follow=true").text)[:-1]
    assert {data["removed_bytes"] for _, _, data in chunks} == {0}


def test_old_audit_entries_are_deleted_and_new_ones_stay(small: World) -> None:
    for _ in range(3):
        small.submit()
    small.clock.now += DAY_S - 60
    newest = small.submit()
    small.clock.now += 120
    small.turn_until(lambda: count(small, AuditRow) == 1)
    with small.database.read() as session:
        assert session.scalars(select(AuditRow.subject)).all() == [newest]


def test_an_idempotency_key_is_kept_for_a_week(client: TestClient, world: World) -> None:
    key = {"Idempotency-Key": "once"}
    spec = {**DIGITS, **LONG}
    first = client.post(JOBS, json=spec, headers=key).json()["id"]
    world.clock.now += KEY_RETENTION_S - 60
    world.turn()
    assert client.post(JOBS, json=spec, headers=key).json()["id"] == first
    world.clock.now += 2 * 3600
    world.turn_until(lambda: count(world, IdempotencyRow) == 0)
    assert client.post(JOBS, json=spec, headers=key).json()["id"] != first


def test_tokens_stay_listed_for_90_days_after_they_were_revoked_or_expired(
    client: TestClient, world: World
) -> None:
    def add_token(label: str, days: float | None) -> str:
        asked = {"label": label, "days": days, "user": "ada"}
        return str(client.post("/api/v1/tokens", json=asked).json()["id"])

    client.post("/api/v1/users", json={"name": "ada"})
    revoked, expired, kept = (
        add_token(label, days) for label, days in (("old", None), ("short", 1), ("long", None))
    )
    client.delete(f"/api/v1/tokens/{revoked}").raise_for_status()
    world.clock.now += TOKEN_RETENTION_S - 60
    world.turn()
    assert count(world, TokenRow) == 3, expired
    world.clock.now += 2 * 3600
    world.turn_until(lambda: count(world, TokenRow) == 2)
    world.clock.now += DAY_S
    world.turn_until(lambda: count(world, TokenRow) == 1)
    listed = client.get("/api/v1/tokens", params={"user": "ada"}).json()["items"]
    assert [token["id"] for token in listed] == [kept]


@pytest.mark.parametrize("history", ["epochs", "decisions"])
def test_a_page_of_a_model_with_many_layers_has_fewer_items(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch, history: str
) -> None:
    job = world.finish(world.submit(training={"epochs": 8}))
    path = f"{JOBS}/{job.id}/{history}"
    whole = walk(client, path, limit=500)
    monkeypatch.setattr("accordion_service.api.history.MAX_PAGE_LAYERS", 2 * len(layer_names(job)))
    assert client.get(path, params={"limit": 500}).json()["items"] == whole[:2]
    assert walk(client, path, limit=500) == whole
