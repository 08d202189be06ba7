"""What `/metrics` says of the service itself changes with what happens to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from accordion_service.api.app import create_app
from accordion_service.store.writes.jobs import JobSubmission
from accordion_service.store.writes.scheduler_counts import BUCKETS, RECORD_DELAYS
from tests.api.conftest import LOCAL, Live
from tests.api.team import wait_for
from tests.api.test_streams import JOBS, submit
from tests.api.webhook_receiver import LOOPBACK, Receiver
from tests.api.world import DIGITS, TURN_S, World
from tests.conftest import Require
from tests.programs import run_program
from tests.unit.service.test_metrics import value

TOO_LARGE = {"workers": {"min": 1, "max": 1, "cpus": 40}}
TURNS = "accordion_scheduler_turn_duration_seconds"
DELAYS = "accordion_record_delay_seconds"
HOOKS = "/api/v1/webhooks"

Scrape = Callable[..., float]


def scrape_of(client: TestClient | httpx2.Client) -> Scrape:
    def scrape(name: str, **labels: str) -> float:
        answer = client.get("/metrics")
        assert answer.status_code == 200
        found = value(answer.text, name, **labels)
        assert found is not None, f"{name} {labels} is not exported"
        return found

    return scrape


@pytest.fixture
def scrape(client: TestClient) -> Scrape:
    return scrape_of(client)


@contextmanager
def broken_table(world: World, table: str) -> Iterator[None]:
    """The database lacks a table."""
    rename = "ALTER TABLE {} RENAME TO {}"
    with world.database.write() as session:
        session.execute(text(rename.format(table, "hidden")))
    yield
    with world.database.write() as session:
        session.execute(text(rename.format("hidden", table)))


def store_counts(world: World) -> None:
    """Turn until the lease was renewed, and the counts with it."""
    world.clock.now += world.settings.lease_s / 2
    world.turn()


def test_turns_are_counted_with_their_duration(
    world: World, scrape: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = world.runtime.nodes

    def look_slowly() -> Any:
        world.clock.now += 2.0
        return look()

    world.turn(8)
    store_counts(world)
    fast = scrape(f"{TURNS}_bucket", le="1")
    assert fast == scrape(f"{TURNS}_count") == 8
    monkeypatch.setattr(world.runtime, "nodes", look_slowly)
    world.turn(3)
    store_counts(world)
    assert scrape(f"{TURNS}_bucket", le="1") == fast + 1
    assert scrape(f"{TURNS}_bucket", le="2.5") == scrape(f"{TURNS}_count") == fast + 4
    assert scrape(f"{TURNS}_sum") == pytest.approx(6.0)


@pytest.mark.parametrize("table", ["leases", "quotas"])
def test_a_turn_that_fails_is_an_error_and_a_turn(world: World, scrape: Scrape, table: str) -> None:
    with broken_table(world, table):
        for _ in range(2):
            with pytest.raises(DBAPIError):
                world.turn()
    store_counts(world)
    store_counts(world)
    assert scrape("accordion_scheduler_errors_total", scope="turn") == 2
    assert scrape("accordion_scheduler_errors_total", scope="job") == 0
    assert scrape("accordion_scheduler_database_errors_total", kind="no_tables") == 2
    assert scrape(f"{TURNS}_count") == 3


def test_a_job_that_fails_in_a_turn_is_an_error_of_one_job(
    world: World, scrape: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("broken on purpose")

    monkeypatch.setattr(world.runtime, "start", fail)
    world.submit()
    world.turn()
    store_counts(world)
    assert scrape("accordion_scheduler_errors_total", scope="job") >= 1
    assert scrape("accordion_scheduler_errors_total", scope="turn") == 0


def test_a_lease_that_is_taken_over_is_a_change_and_counts_go_on(
    world: World, scrape: Scrape
) -> None:
    world.turn(4)
    store_counts(world)
    assert scrape("accordion_scheduler_lease_changes_total") == 0
    turns = scrape(f"{TURNS}_count")
    world.kill_scheduler()
    world.turn()
    assert scrape("accordion_scheduler_lease_changes_total") == 1
    store_counts(world)
    assert scrape(f"{TURNS}_count") == turns + 2 - 1, "the killed one had not stored its last turn"


def test_a_scheduler_that_stops_stores_what_it_counted(world: World, scrape: Scrape) -> None:
    world.turn(2)
    world.scheduler.release()
    assert scrape(f"{TURNS}_count") == 2


def test_records_are_counted_once_by_their_age(world: World, scrape: Scrape) -> None:
    world.runtime.ahead_s = -20.0
    world.finish(world.submit())
    store_counts(world)
    stored = scrape(f"{DELAYS}_count")
    assert stored > 4, "four epochs, and more"
    assert scrape(f"{DELAYS}_bucket", le="10") == 0
    assert scrape(f"{DELAYS}_bucket", le="30") == stored
    assert scrape(f"{DELAYS}_sum") == pytest.approx(20.0 * stored, abs=stored * TURN_S * 4)
    store_counts(world)
    assert scrape(f"{DELAYS}_count") == stored


def test_a_record_from_a_clock_that_is_ahead_has_no_age(world: World, scrape: Scrape) -> None:
    world.runtime.ahead_s = 20.0
    world.finish(world.submit())
    store_counts(world)
    lowest = f"{BUCKETS[RECORD_DELAYS][0]:g}"
    assert scrape(f"{DELAYS}_bucket", le=lowest) == scrape(f"{DELAYS}_count") > 0
    assert scrape(f"{DELAYS}_sum") == 0


def test_a_job_that_waits_ages_under_its_reason(world: World, scrape: Scrape) -> None:
    age = "accordion_queue_age_seconds"
    world.submit()
    world.clock.now += 60
    assert scrape(age, reason="SUBMITTED") == 60
    world.submit(**TOO_LARGE)
    world.clock.now += 40
    world.submit(**TOO_LARGE)
    world.turn()
    assert scrape(age, reason="SUBMITTED") == 0
    assert scrape(age, reason="NEVER_FITS") == pytest.approx(40 + TURN_S)


def test_a_job_whose_time_has_not_come_does_not_wait(world: World, scrape: Scrape) -> None:
    world.submit(start_at=world.clock.now + 1e6)
    world.clock.now += 60
    world.turn()
    assert scrape("accordion_queue_jobs") == 1
    assert "SCHEDULED" not in world_ages(scrape)
    assert set(world_ages(scrape).values()) == {0}


def world_ages(scrape: Scrape) -> dict[str, float]:
    """Ages by reason, of those that are exported without any job."""
    return {
        reason: scrape("accordion_queue_age_seconds", reason=reason)
        for reason in ("SUBMITTED", "WAITING_FOR_ROOM", "NEVER_FITS", "PREEMPTED")
    }


def test_a_job_that_has_trained_waits_since_its_attempt_ended(world: World, scrape: Scrape) -> None:
    job_id = world.submit(training={"epochs": 400})
    world.train(job_id)
    world.clock.now += 3600
    world.runtime.cpus = [0.5]
    world.runtime.lose(job_id)
    world.turn_until(lambda: world.job(job_id).status == "QUEUED")
    world.turn(2)
    waits = scrape("accordion_queue_age_seconds", reason=world.job(job_id).reason)
    assert 0 < waits < 60


@pytest.mark.sqlite_only("it limits the size of the database file")
def test_a_full_disk_is_counted_for_api_and_scheduler(
    world: World, client: TestClient, scrape: Scrape
) -> None:
    world.turn()
    for database in (world.database, client.app.state.accordion.database):  # type: ignore[attr-defined]
        with database.connect_writer() as connection:
            connection.execute(text("PRAGMA max_page_count = 1"))
    large = {**DIGITS, "labels": {f"k{n}": "v" * 60 for n in range(30)}}
    while client.post(JOBS, json=large).status_code == 201:
        pass
    assert scrape("accordion_api_database_errors_total", kind="full") == 1
    assert scrape("accordion_api_database_errors_total", kind="locked") == 0
    assert scrape("accordion_api_database_reachable") == 1
    with pytest.raises(DBAPIError):
        submit_without_end(world, large)
    with world.database.connect_writer() as connection:
        connection.execute(text("PRAGMA max_page_count = 1000000"))
    store_counts(world)
    assert scrape("accordion_scheduler_database_errors_total", kind="full") == 1


def submit_without_end(world: World, spec: dict[str, Any]) -> None:
    while True:
        world.submit(**spec)


@pytest.mark.sqlite_only("it removes the database file")
def test_a_database_that_is_gone_leaves_the_metrics_of_the_process(
    world: World, client: TestClient, scrape: Scrape
) -> None:
    assert scrape("accordion_api_database_reachable") == 1
    (world.settings.home / "accordion.db").unlink()
    assert client.get(JOBS).status_code == 503
    assert scrape("accordion_api_database_reachable") == 0
    assert scrape("accordion_api_database_errors_total", kind="damaged") >= 2
    assert scrape("accordion_api_request_duration_seconds_count", route=JOBS, status="503") == 1
    assert value(client.get("/metrics").text, "accordion_queue_jobs") is None


def test_a_metric_that_cannot_be_read_is_our_fault_and_not_the_databases(
    world: World, client: TestClient
) -> None:
    with world.database.write() as session:
        session.execute(text("ALTER TABLE cluster RENAME COLUMN nodes TO hidden"))
    assert client.get("/metrics").status_code == 500


def test_promtool_has_nothing_to_say_about_a_whole_scrape(
    world: World, client: TestClient, require: Require
) -> None:
    world.train(world.submit())
    said = run_program([require("promtool"), "check", "metrics"], input=client.get("/metrics").text)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


def test_all_api_processes_export_the_same_of_the_service(world: World, client: TestClient) -> None:
    world.train(world.submit())
    world.submit(**TOO_LARGE)
    other = create_app(world.settings, world.clock)
    with TestClient(other, base_url=LOCAL) as beside:
        beside.get(JOBS)
        here, there = (
            [line for line in one.get("/metrics").text.splitlines() if "accordion_api_" not in line]
            for one in (client, beside)
        )
    other.state.accordion.database.close()
    assert here == there
    assert any(line.startswith(f"{TURNS}_bucket") for line in here)


def test_a_stream_is_counted_while_it_is_open(live: Live) -> None:
    with live.client() as client:
        scrape = scrape_of(client)
        job_id = submit(client, training={"epochs": 100_000})
        assert scrape("accordion_api_streams") == 0
        with client.stream("GET", f"{JOBS}/{job_id}/events") as events:
            lines = events.iter_lines()
            next(lines)
            with client.stream("GET", f"{JOBS}/{job_id}/logs?follow=true") as logs:
                more_lines = logs.iter_lines()
                next(more_lines)
                assert scrape("accordion_api_streams") == 2
            wait_for(lambda: scrape("accordion_api_streams") == 1)
        wait_for(lambda: scrape("accordion_api_streams") == 0)


def test_a_request_that_writes_takes_a_slot_and_a_thread(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    came, go, add = threading.Event(), threading.Event(), JobSubmission.submit

    def wait_and_submit(*given: Any) -> Any:
        came.set()
        assert go.wait(timeout=60)
        return add(*given)

    monkeypatch.setattr(JobSubmission, "submit", wait_and_submit)
    used = "accordion_api_slots_used"
    with ThreadPoolExecutor(1) as pool, live.client() as client:
        scrape = scrape_of(client)
        threads = scrape(used, kind="thread")
        writer = pool.submit(client.post, JOBS, json=DIGITS, timeout=60)
        try:
            assert came.wait(timeout=30)
            assert scrape(used, kind="write") == 1
            assert scrape(used, kind="thread") > threads
        finally:
            go.set()
        assert writer.result().status_code == 201
        assert scrape(used, kind="write") == 0
        assert scrape("accordion_api_slots_limit", kind="write") == 20


@pytest.fixture
def hooked(tmp_path: Path, database_url: str) -> Iterator[World]:
    """A service that may send to receivers on loopback."""
    world = World(tmp_path, database_url=database_url, webhook_networks=LOOPBACK)
    yield world
    world.scheduler.release()
    world.close()


def test_messages_to_webhooks_are_counted_by_what_became_of_them(
    hooked: World, receiver: Receiver
) -> None:
    receiver.answers.extend([204, 500, 410])
    app = create_app(hooked.settings, hooked.clock)
    with TestClient(app, base_url=LOCAL) as client:
        scrape = scrape_of(client)
        assert client.post(HOOKS, json={"name": "h", "url": receiver.url}).status_code == 201
        for outcome, waiting, given_up in (("DELIVERED", 0, 0), ("PENDING", 1, 0)):
            client.post(f"{HOOKS}/h/test")
            turn_until_counted(hooked, scrape, outcome)
            assert scrape("accordion_webhook_deliveries", state="PENDING") == waiting
            assert scrape("accordion_webhook_deliveries", state="DEAD") == given_up
        hooked.clock.now += 3600
        turn_until_counted(hooked, scrape, "DEAD")
        assert scrape("accordion_webhook_deliveries", state="DEAD") == 1
    app.state.accordion.database.close()


def turn_until_counted(world: World, scrape: Scrape, outcome: str) -> None:
    """Turn beside the threads until an attempt has ended so; pytest's time limit ends it."""
    while scrape("accordion_webhook_attempts_total", outcome=outcome) == 0:
        store_counts(world)


def test_a_message_that_nobody_sends_is_overdue_unless_its_webhook_is_disabled(
    hooked: World, receiver: Receiver
) -> None:
    app = create_app(hooked.settings, hooked.clock)
    with TestClient(app, base_url=LOCAL) as client:
        scrape = scrape_of(client)
        client.post(HOOKS, json={"name": "h", "url": receiver.url})
        assert scrape("accordion_webhook_overdue_seconds") == 0
        client.post(f"{HOOKS}/h/test")
        hooked.clock.now += 90
        assert scrape("accordion_webhook_overdue_seconds") == 90
        with hooked.database.write() as session:
            session.execute(text("UPDATE webhooks SET disabled_at = 1"))
        assert scrape("accordion_webhook_overdue_seconds") == 0
        assert scrape("accordion_webhook_deliveries", state="PENDING") == 1
    app.state.accordion.database.close()
