"""Events and output of jobs that ended a while ago are removed, and readers are told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from accordion_service.api.app import create_app
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.domain.jobs.statuses import Status
from accordion_service.store.tables.models import EventRow, JobRow, LogChunkRow
from accordion_service.store.writes import history_limits
from accordion_service.store.writes.steering import accept_any
from tests.api.conftest import LOCAL
from tests.api.team import JOBS
from tests.api.test_history_limits import frames
from tests.api.world import World

DAY_S = 86_400.0


@pytest.fixture
def short(tmp_path: Path, database_url: str) -> Iterator[World]:
    """A service that keeps events and output for a day after the end of their job."""
    world = World(tmp_path, database_url=database_url, history_retention_s=DAY_S)
    yield world
    world.close()


@pytest.fixture
def short_client(short: World) -> Iterator[TestClient]:
    app = create_app(short.settings, short.clock)
    with TestClient(app, base_url=LOCAL) as client:
        yield client
    app.state.accordion.database.close()


def events_of(world: World, job_id: str) -> list[tuple[int, str]]:
    query = select(EventRow.seq, EventRow.type).where(EventRow.job_id == job_id)
    with world.database.read() as session:
        return [(seq, kind) for seq, kind in session.execute(query.order_by(EventRow.seq))]


def chunks_of(world: World, job_id: str) -> list[int]:
    query = select(LogChunkRow.number).where(LogChunkRow.job_id == job_id)
    with world.database.read() as session:
        return list(session.scalars(query.order_by(LogChunkRow.number)))


def is_trimmed(world: World, job_id: str) -> bool:
    return world.job(job_id).history_removed_at is not None


def trim(world: World, job_id: str) -> JobRow:
    """Let the history of an ended job become old; return the job once it is removed."""
    world.clock.now += DAY_S + 120
    world.turn_until(lambda: is_trimmed(world, job_id))
    return world.job(job_id)


def test_the_end_and_the_newest_output_of_a_job_stay(short: World) -> None:
    job = short.finish(short.submit())
    before = events_of(short, job.id), chunks_of(short, job.id)
    assert len(before[1]) > 1
    short.clock.now += DAY_S - 120
    short.turn(3)
    assert (events_of(short, job.id), chunks_of(short, job.id)) == before
    job = trim(short, job.id)
    assert events_of(short, job.id) == [(job.event_seq, "end")]
    assert job.events_removed == job.event_seq - 1
    assert chunks_of(short, job.id) == [job.log_number]
    assert job.log_bytes_removed > 0
    assert short.history.epochs(job.id), "epochs are kept as long as the job"


def test_what_follows_the_end_stays(short_client: TestClient, short: World) -> None:
    job = short.finish(short.submit())
    assert short_client.post(f"{JOBS}/{job.id}/archive").is_success
    trim(short, job.id)
    assert [kind for _, kind in events_of(short, job.id)] == ["end", "archive"]


@pytest.mark.parametrize("tail", ["", "&tail=400"])
def test_readers_are_told_what_was_removed(
    short_client: TestClient, short: World, tail: str
) -> None:
    job = trim(short, short.finish(short.submit()).id)
    gap, end = frames(short_client.get(f"{JOBS}/{job.id}/events").text)
    assert gap[:2] == (job.events_removed, "gap")
    assert (gap[2]["from_seq"], gap[2]["to_seq"]) == (1, job.event_seq - 1)
    assert "ACCORDION_HISTORY_RETENTION_S" in gap[2]["why"]
    assert end[:2] == (job.event_seq, "end")
    first, *_ = short_client.get(f"{JOBS}/{job.id}/logs").text.splitlines()
    assert "older output were removed" in first
    assert "ACCORDION_HISTORY_RETENTION_S" in first
    (_, kind, chunk), last = frames(
        short_client.get(f"{JOBS}/{job.id}/logs?follow=true{tail}").text
    )
    assert (kind, chunk["removed_bytes"], last[1]) == ("log", job.log_bytes_removed, "end")


def test_a_job_says_how_much_output_was_removed_and_when(
    short_client: TestClient, short: World
) -> None:
    job_id = short.finish(short.submit()).id
    path = f"{JOBS}/{job_id}"
    whole = short_client.get(path).json()
    assert (whole["log_bytes_removed"], whole["history_removed_at"]) == (0, None)
    job = trim(short, job_id)
    found = short_client.get(path).json()
    assert found["log_bytes_removed"] == job.log_bytes_removed > 0
    assert found["history_removed_at"] is not None


def test_a_report_says_what_was_removed(short_client: TestClient, short: World) -> None:
    job_id = short.finish(short.submit()).id
    whole = short_client.get(f"{JOBS}/{job_id}/report").text
    job = trim(short, job_id)
    removed = f"{job.events_removed} older events and {format_bytes(job.log_bytes_removed)} of"
    html = short_client.get(f"{JOBS}/{job_id}/report").text
    assert f"No longer kept: {removed} older output. ACCORDION_MAX_EVENTS and" in html
    assert "ACCORDION_HISTORY_RETENTION_S how long after its end." in html
    assert "No longer kept" not in whole


def test_a_long_history_is_removed_in_small_transactions(
    short: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_limits, "MAX_REMOVED", 7)
    job = short.finish(short.submit(training={"epochs": 30}))
    short.clock.now += DAY_S + 120
    seen = []
    while not is_trimmed(short, job.id):  # pytest's time limit ends it
        seen.append((len(events_of(short, job.id)), len(chunks_of(short, job.id))))
        short.turn()
    removed = [(one[0] - two[0], one[1] - two[1]) for one, two in pairwise(seen)]
    assert len(removed) > 3
    assert max(max(counts) for counts in removed) == 7


def test_a_retried_job_keeps_what_follows_and_counts_on(short: World) -> None:
    job_id = short.submit()
    short.train(job_id)
    short.runtime.fail(job_id, "ValueError: broken on purpose")
    assert short.finish(job_id).status == Status.FAILED
    newest = trim(short, job_id).event_seq
    short.lifecycle.retry(job_id, accept_any)
    short.turn(3)
    assert not is_trimmed(short, job_id)
    job = short.finish(job_id)
    assert job.status == Status.SUCCEEDED
    assert [seq for seq, _ in events_of(short, job_id)] == list(range(newest, job.event_seq + 1))
    assert [kind for _, kind in events_of(short, job_id)].count("end") == 1


def test_jobs_that_go_on_keep_their_history(short: World) -> None:
    job_id = short.submit(training={"epochs": 100_000})
    short.train(job_id)
    short.clock.now += 2 * DAY_S
    short.turn(5)
    assert short.job(job_id).events_removed == 0


def test_all_is_kept_by_default(world: World) -> None:
    job = world.finish(world.submit())
    world.clock.now += 1000 * DAY_S
    world.turn(5)
    assert (world.job(job.id).events_removed, is_trimmed(world, job.id)) == (0, False)
