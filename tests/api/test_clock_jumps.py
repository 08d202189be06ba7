"""Changes of the wall clock stop no job and no scheduler: durations are measured on a monotonic
clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.job_inputs.code import CodeStore
from accordion_service.process.trusted_clock import AGREED_S
from accordion_service.store.tables.models import AuditRow, IdempotencyRow
from tests.api.test_code import GOOD
from tests.api.test_health import checks
from tests.api.world import World

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[World]:
    world = World(tmp_path, database_url=database_url, start_timeout_s=10, cancel_grace_s=5)
    yield world
    world.close()


def test_a_dead_scheduler_has_a_successor_in_seconds_though_the_clock_was_set_back(
    world: World,
) -> None:
    world.turn()
    world.clock.jump(-HOUR_S)
    world.scheduler = world.new_scheduler()
    job_id = world.submit()
    world.turn_until(lambda: world.job(job_id).attempt == 1, limit=20)


def test_a_scheduler_that_lives_keeps_its_lease_though_another_ones_clock_is_behind(
    world: World,
) -> None:
    world.turn()
    other = world.new_scheduler(clock=lambda: world.clock.now - HOUR_S)
    for _ in range(40):
        world.turn()
        assert not other.run_once()


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S])
def test_a_start_has_its_whole_time_however_the_clock_jumps(world: World, jump_s: float) -> None:
    world.runtime.slow_start = 10**6
    job_id = world.submit()
    world.turn()
    world.clock.jump(jump_s)
    world.turn(int(world.settings.start_timeout_s / 0.25) - 4)
    assert world.job(job_id).attempt == 1
    world.turn_until(lambda: world.job(job_id).lost_attempts == 1, limit=40)


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_job_that_does_not_stop_ends_after_its_grace_though_the_clock_went_back(
    world: World, takes_over: bool
) -> None:
    job_id = world.submit()
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    world.cancel(job_id)
    world.turn()
    world.clock.jump(-HOUR_S)
    if takes_over:
        world.kill_scheduler()
    world.turn_until(
        lambda: world.has_ended(job_id), limit=int(world.settings.cancel_grace_s / 0.25) + 60
    )


def test_a_job_out_of_sight_is_given_up_in_time_though_the_clock_was_set_back(world: World) -> None:
    job_id = world.submit()
    world.train(job_id)
    world.runtime.lose(job_id)
    world.turn(2)
    world.clock.jump(-HOUR_S)
    world.turn_until(lambda: world.job(job_id).attempt == 2, limit=40)
    assert world.job(job_id).reason != Reason.LOST


def test_a_heartbeat_from_the_future_is_not_ready_and_says_why(
    client: TestClient, world: World
) -> None:
    world.turn()
    world.clock.jump(-HOUR_S)
    ok, message = checks(client)["scheduler"]
    assert (ok, "3599.8 s in the future" in message or "3600.0 s in the future" in message) == (
        False,
        True,
    )
    world.turn()
    assert checks(client)["scheduler"][0]


def test_progress_goes_on_though_the_workers_clock_was_set_back(world: World) -> None:
    job_id = world.submit(training={"epochs": 40})
    world.train(job_id)
    world.turn(2)
    before = world.job(job_id).progress["step"]
    world.clock.jump(-HOUR_S)
    world.turn(3)
    assert world.job(job_id).progress["step"] > before


def test_the_times_of_a_jobs_events_never_run_back(world: World) -> None:
    job_id = world.submit()
    world.train(job_id)
    world.clock.jump(-HOUR_S)
    world.finish(job_id)
    times = [event.time for event in world.events(job_id)]
    assert times == sorted(times)


def test_a_worker_whose_clock_is_ahead_takes_no_event_into_the_future(world: World) -> None:
    job_id = world.submit()
    world.train(job_id)
    world.runtime.ahead_s = HOUR_S
    world.finish(job_id)
    assert max(event.time for event in world.events(job_id)) <= world.clock.now


@pytest.fixture
def kept(tmp_path: Path, database_url: str) -> Iterator[World]:
    """A service that keeps what ended for a day."""
    names = ("job", "history", "audit", "code", "checkpoint")
    times = {f"{name}_retention_s": DAY_S for name in names}
    world = World(tmp_path, database_url=database_url, **times)
    yield world
    world.close()


def list_kept(world: World, job_id: str) -> tuple[object, ...]:
    """What is kept for a while: the job, its events and checkpoints, the audit log, code."""
    files = world.runtime.checkpoint_files.get(job_id)
    code = len(list(world.settings.code.glob("*.zip")))
    with world.database.read() as session:
        audit = session.query(AuditRow).count()
    return world.jobs.get(job_id) is not None, len(world.events(job_id)), files, audit, code


def end_job(world: World) -> str:
    """End a job that has checkpoints, beside an upload that no job names."""
    job_id = world.submit(training={"epochs": 1})
    world.finish(job_id)
    world.runtime.checkpoint_files[job_id] = {"g1-e1": True, "g1-e2": True}
    with CodeStore(world.settings.code, world.clock).draft(10**6) as draft:
        draft.write(GOOD)
        CodeStore(world.settings.code, world.clock).keep(draft)
    world.clock.now += HOUR_S
    world.turn()
    return job_id


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_clock_that_is_ahead_for_a_moment_deletes_nothing(kept: World, takes_over: bool) -> None:
    job_id = end_job(kept)
    before = list_kept(kept, job_id)
    kept.clock.jump(40 * DAY_S)
    if takes_over:
        kept.kill_scheduler()
    kept.clock.now += 61.0
    kept.turn(10)
    kept.clock.jump(-40 * DAY_S)
    kept.turn(10)
    assert list_kept(kept, job_id) == before


def test_what_is_old_goes_once_both_clocks_have_agreed_for_a_while(kept: World) -> None:
    job_id = end_job(kept)
    kept.clock.jump(40 * DAY_S)
    kept.clock.now += 61.0
    kept.turn()
    assert kept.jobs.get(job_id) is not None
    kept.clock.now += AGREED_S
    kept.turn_until(lambda: kept.jobs.get(job_id) is None)


def test_audit_entries_that_are_kept_shortly_make_no_other_row_old(
    tmp_path: Path, database_url: str
) -> None:
    world = World(tmp_path, database_url=database_url, audit_retention_s=1.0)
    key = {"scope": "jobs", "key": "once", "body_hash": "0", "answer_id": "0"}
    with world.database.write() as session:
        session.add(IdempotencyRow(**key, created_at=world.clock.now))
    world.submit()
    world.clock.jump(40 * DAY_S)
    for _ in range(3):
        world.clock.now += 61.0
        world.turn()
    with world.database.read() as session:
        assert session.query(AuditRow).count() == 0
        assert session.query(IdempotencyRow).count() == 1
    world.close()


LIMITS = [{"training_seconds": 60.0}, {"total_seconds": 60.0}]


@pytest.mark.parametrize("limits", LIMITS, ids=["training", "total"])
@pytest.mark.parametrize("takes_over", [False, True])
def test_a_clock_that_is_ahead_for_a_moment_stops_no_job(
    world: World, limits: dict[str, float], takes_over: bool
) -> None:
    job_id = world.submit(training={"epochs": 4000}, limits=limits)
    world.train(job_id)
    world.turn(8)
    world.clock.jump(40 * DAY_S)
    if takes_over:
        world.kill_scheduler()
    world.turn(24)
    world.clock.jump(-40 * DAY_S)
    world.turn(8)
    assert world.job(job_id).status == Status.RUNNING


def test_a_limit_counts_what_a_job_trained_while_no_scheduler_ran(world: World) -> None:
    job_id = world.submit(training={"epochs": 4000}, limits={"training_seconds": HOUR_S})
    world.train(job_id)
    world.turn(8)
    world.kill_scheduler()
    world.clock.now += 2 * HOUR_S
    world.turn(8)
    world.clock.now += AGREED_S
    world.turn_until(lambda: world.job(job_id).reason == Reason.TIMED_OUT, limit=40)
