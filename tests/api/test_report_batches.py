"""Reports of many running jobs are stored in batches: no job keeps the others waiting, and nothing
is lost or doubled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from accordion_service.domain.jobs.statuses import Status
from accordion_service.scheduler import report_drain
from accordion_service.store.ingest.report_writes import ReportWrites
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes import history_limits
from accordion_service.store.writes.leases import LeaseLost
from accordion_workers.records.contract import CheckpointRecord, DesiredState
from tests.api.test_nothing_lost import LONG, expected, lines
from tests.api.world import World

Ingest = Callable[..., frozenset[str]]


def train_three(world: World) -> list[str]:
    """Three jobs that train beside each other; return their ids."""
    one = {"min": 1, "max": 1}
    jobs = [world.submit(workers=one, **LONG) for _ in range(3)]
    for job_id in jobs:
        world.train(job_id)
    world.turn_until(lambda: all(world.job(id_).orders_confirmed for id_ in jobs))
    return jobs


def count_epochs(world: World, jobs: list[str]) -> list[int]:
    return [len(world.epochs(job_id)) for job_id in jobs]


def note_orders(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the jobs that orders are sent to from now on."""
    sent, send = [], world.runtime.send_orders

    def note_and_send(job_id: str, orders: DesiredState) -> bool:
        sent.append(job_id)
        return send(job_id, orders)

    monkeypatch.setattr(world.runtime, "send_orders", note_and_send)
    return sent


@pytest.mark.parametrize("is_hung", [False, True], ids=["full answer", "no answer"])
def test_a_job_that_the_actor_does_not_answer_for_is_sent_no_orders_again(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_hung: bool
) -> None:
    jobs = train_three(world)
    guest = world.runtime.enlist()
    world.turn_until(lambda: bool(world.jobs.get(guest)))
    made = world.override(guest, level="low", apply_at=100)
    world.turn_until(lambda: world.override_row(guest, made).state == "DELIVERED")
    before, sent = count_epochs(world, jobs), note_orders(world, monkeypatch)
    if is_hung:
        monkeypatch.setattr(world.runtime, "drain_many", lambda _: {})
    else:
        world.runtime.drain_limit = 1
        monkeypatch.setattr(report_drain, "MAX_ANSWERS", 1)
    world.turn(8)
    assert sent == []
    if not is_hung:
        assert all(now > old for now, old in zip(count_epochs(world, jobs), before, strict=True))


def test_jobs_that_a_full_answer_leaves_out_are_drained_in_the_same_turn(world: World) -> None:
    jobs = train_three(world)
    before = count_epochs(world, jobs)
    world.runtime.drain_limit = 1
    world.turn()
    assert count_epochs(world, jobs) == [count + 1 for count in before]


def patch_ingest(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    """Let `change` be called in place of `ReportWrites.ingest`, with that as its first argument."""
    ingest = ReportWrites.ingest
    monkeypatch.setattr(
        ReportWrites, "ingest", lambda writes, *given: change(lambda: ingest(writes, *given))
    )


@pytest.mark.parametrize("failures", [1, 2], ids=["the batch", "each job alone too"])
def test_output_is_stored_once_if_the_database_stored_it_and_could_not_say_so(
    world: World, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    jobs = train_three(world)
    left = [failures]

    def lose_response(ingest: Ingest) -> frozenset[str]:
        stored = ingest()
        if left[0] > 0:
            left[0] -= 1 if failures == 1 else 0.25
            raise OperationalError("COMMIT", {}, Exception("the connection was lost"))
        return stored

    patch_ingest(monkeypatch, lose_response)
    for job_id in jobs:
        assert world.finish(job_id).status == Status.SUCCEEDED
        assert (lines(world, job_id), world.epochs(job_id)) == (expected(40), list(range(40)))
    assert left[0] <= 0


def test_batches_that_take_longer_than_the_lease_lasts_keep_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, other, others = train_three(world), world.new_scheduler(), []
    monkeypatch.setattr(report_drain, "JOBS_PER_WRITE", 1)

    def take_long(ingest: Ingest) -> frozenset[str]:
        world.clock.now += 0.6 * world.settings.lease_s
        others.append(other.run_once())
        return ingest()

    with monkeypatch.context() as patch:
        patch_ingest(patch, take_long)
        before = count_epochs(world, jobs)
        world.turn()
    assert others == [False] * len(jobs)
    assert count_epochs(world, jobs) == [count + 1 for count in before]


def test_a_scheduler_that_loses_its_lease_between_two_batches_stores_no_other_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_three(world)
    monkeypatch.setattr(report_drain, "JOBS_PER_WRITE", 1)
    other, outcomes = world.new_scheduler(), []

    def lose_lease(ingest: Ingest) -> frozenset[str]:
        if outcomes:
            return ingest()
        outcomes.append("running")
        world.clock.now += 2 * world.settings.lease_s
        with monkeypatch.context() as patch:
            patch.setattr(world.runtime, "drain_many", lambda _: {})
            assert other.run_once()
        try:
            return ingest()
        except LeaseLost:
            outcomes.append("lost")
            raise

    patch_ingest(monkeypatch, lose_lease)
    assert not world.scheduler.run_once()
    assert outcomes == ["running", "lost"]


def test_a_report_that_is_refused_by_itself_costs_no_other_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = train_three(world)
    ingest, sizes = ReportWrites.ingest, []

    def refuse_one(writes: ReportWrites, token: int, reports: Any) -> frozenset[str]:
        sizes.append(len(reports))
        if jobs[1] in {job.id for job, _ in reports}:
            raise ValueError("a report that this version cannot read")
        return ingest(writes, token, reports)

    with monkeypatch.context() as patch:
        patch.setattr(ReportWrites, "ingest", refuse_one)
        world.turn(5)
    assert sizes.count(3) == 1
    assert sizes.count(2) == 4
    for job_id in jobs:
        assert world.finish(job_id).status == Status.SUCCEEDED
        assert (lines(world, job_id), world.epochs(job_id)) == (expected(40), list(range(40)))


def test_a_report_that_could_be_stored_again_returns_to_the_batches(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, sizes, failures = train_three(world), [], [True, True]

    def fail_twice(ingest: Ingest) -> frozenset[str]:
        if failures:
            failures.pop()
            raise ValueError("a report that this version cannot read")
        return ingest()

    with monkeypatch.context() as patch:
        patch_ingest(patch, fail_twice)
        world.turn(2)
        ingest = ReportWrites.ingest
        patch.setattr(
            ReportWrites,
            "ingest",
            lambda writes, token, reports: (
                sizes.append(len(reports)),
                ingest(writes, token, reports),
            )[1],
        )
        world.turn(2)
    assert sizes[-1] == len(jobs)


def test_a_number_that_the_columns_have_no_room_for_does_not_keep_later_records(
    world: World,
) -> None:
    jobs = train_three(world)
    numbers = {"epoch": 1, "step": 2**31, "size_bytes": 1, "seconds": 0.1}
    world.runtime.report(jobs[0], CheckpointRecord(name="far-away", **numbers))
    for job_id in jobs:
        assert world.finish(job_id).status == Status.SUCCEEDED
        assert world.epochs(job_id) == list(range(40))
    assert "far-away" not in {row.name for row in world.history.checkpoints(jobs[0])}


def test_a_job_whose_row_is_locked_keeps_no_other_one_waiting(
    tmp_path: Path, postgres_url: str
) -> None:
    world = World(tmp_path, database_url=postgres_url)
    jobs = train_three(world)
    before = count_epochs(world, jobs)
    with world.database.write() as session:
        session.scalars(select(JobRow).where(JobRow.id == jobs[1]).with_for_update()).one()
        world.turn(3)
    assert world.database.errors.count_by_kind()["locked"] == 0, "a write waited for the lock"
    grown = [now - old for now, old in zip(count_epochs(world, jobs), before, strict=True)]
    assert grown[1] == 0
    assert min(grown[0], grown[2]) >= 2
    for job_id in jobs:
        assert world.finish(job_id).status == Status.SUCCEEDED
        assert (lines(world, job_id), world.epochs(job_id)) == (expected(40), list(range(40)))
    world.close()


def test_jobs_that_pass_the_limit_of_events_together_are_cut_one_after_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_limits, "MAX_REMOVED", 12)
    world.scheduler.release()
    world.settings = world.settings.model_copy(update={"max_events": 50})
    world.scheduler = world.new_scheduler()
    jobs, removed = train_three(world), []

    def count_removed(ingest: Ingest) -> frozenset[str]:
        before = [world.job(job_id).events_removed for job_id in jobs]
        stored = ingest()
        after = [world.job(job_id).events_removed for job_id in jobs]
        removed.append([new - old for new, old in zip(after, before, strict=True)])
        return stored

    patch_ingest(monkeypatch, count_removed)
    world.turn(30)
    assert max(map(max, removed)) == 12
    assert max(sum(count > 0 for count in cut) for cut in removed) == 1
    for job_id in jobs:
        kept = world.job(job_id).event_seq - world.job(job_id).events_removed
        assert kept == len(world.events(job_id)) <= 50 + 12
