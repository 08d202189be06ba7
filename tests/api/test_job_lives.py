"""Lives of jobs while processes die: the scheduler over a scripted cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.runtime.protocol import Node
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.scheduling.scheduler_writes import SchedulerWrites
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.history_limits import HistoryLimits
from accordion_service.store.writes.leases import Lease
from accordion_workers.records.contract import CheckpointRecord, Cursor, EndRecord
from tests.api.fake_job import Saved
from tests.api.fake_runtime import FakeRuntime
from tests.api.world import World


def test_a_job_trains_to_its_end(world: World) -> None:
    job = world.finish(world.submit())
    assert (job.status, job.reason) == (Status.SUCCEEDED, Reason.COMPLETED)
    assert job.message == "all 4 epochs are trained"
    assert world.epochs(job.id) == [0, 1, 2, 3]
    assert job.metrics["accuracy"] > 0.5
    assert [row.name for row in world.history.checkpoints(job.id)][-1] == "epoch-00004"
    assert job.id in world.runtime.removed


def test_a_script_that_exits_early_is_not_said_to_have_trained_all_epochs(world: World) -> None:
    job_id = world.submit()
    world.turn_until(lambda: world.epochs(job_id) == [0])
    end = EndRecord(status="SUCCEEDED", reason="COMPLETED")
    world.runtime.finish(world.runtime.jobs[job_id], end)
    assert world.finish(job_id).message == "its script ended after 1 of 4 epochs"


def test_events_are_numbered_without_gaps_and_end_with_the_end(world: World) -> None:
    job = world.finish(world.submit())
    events = world.events(job.id)
    assert [event.seq for event in events] == list(range(1, job.event_seq + 1))
    assert [event.type for event in events].count("end") == 1
    assert events[-1].type == "end"


def test_logs_outlive_the_cluster(world: World) -> None:
    job = world.finish(world.submit())
    texts = [line["text"] for chunk in world.history.logs(job.id) for line in chunk.lines]
    assert "training from epoch 0, step 0" in texts
    assert "epoch 3 ended" in texts


def test_the_last_lines_are_kept_where_a_supervisor_is_first_seen_at_its_end(world: World) -> None:
    job_id = world.submit()
    world.train(job_id)
    world.runtime.run_to_its_end(job_id)
    assert world.finish(job_id).status == Status.SUCCEEDED
    texts = [line["text"] for chunk in world.history.logs(job_id) for line in chunk.lines]
    assert texts[-1] == "epoch 3 ended"


def test_a_scheduler_killed_in_mid_run_leaves_no_gap_and_no_double(world: World) -> None:
    job_id = world.submit()
    world.train(job_id)
    for _ in range(3):
        world.kill_scheduler()
        world.turn()
    job = world.finish(job_id)
    assert world.epochs(job_id) == [0, 1, 2, 3]
    assert [event.data["epoch"] for event in world.events(job_id, "epoch")] == [0, 1, 2, 3]
    assert job.attempt == 1
    assert world.runtime.started == [(job_id, 1)]


def test_a_scheduler_killed_between_row_and_launch_launches_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit()
    with monkeypatch.context() as patched:
        patched.setattr(FakeRuntime, "start", lambda *_: None)
        world.turn_until(lambda: world.job(job_id).status == Status.STARTING)
    world.kill_scheduler()
    assert world.finish(job_id).attempt == 1
    assert world.runtime.started == [(job_id, 1)]


def test_a_successor_waits_until_the_lease_runs_out(world: World) -> None:
    world.turn()
    successor = world.new_scheduler()
    assert not successor.run_once()
    world.clock.now += world.settings.lease_s
    assert successor.run_once()


def test_a_released_lease_is_free_at_once(world: World) -> None:
    world.turn()
    world.scheduler.release()
    assert world.new_scheduler().run_once()


def test_a_scheduler_that_lost_its_lease_writes_nothing(world: World) -> None:
    world.turn()
    old = world.scheduler
    world.kill_scheduler()
    world.turn()
    job_id = world.submit()
    assert not old.run_once()
    assert world.job(job_id).status == Status.QUEUED


def test_a_scheduler_that_loses_its_lease_while_it_asks_the_cluster_removes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.turn()
    old, jobs = world.scheduler, []

    def nodes(runtime: FakeRuntime) -> list[Node]:
        monkeypatch.undo()
        world.kill_scheduler()
        jobs.append(world.submit())
        world.train(jobs[0])
        return runtime.nodes()

    monkeypatch.setattr(FakeRuntime, "nodes", nodes)
    world.clock.now += 1
    old.run_once()
    assert world.runtime.removed == []
    assert world.finish(jobs[0]).attempt == 1


def test_a_scheduler_asks_for_its_lease_right_before_it_removes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit()
    world.train(job_id)
    old = world.scheduler

    def outlive(*_: object) -> None:
        world.clock.now += world.settings.lease_s
        world.new_scheduler().run_once()

    with world.database.write() as session:
        session.merge(world.job(job_id)).status = Status.FAILED.value
    unfinished = JobReads.unfinished_ids
    monkeypatch.setattr(
        JobReads, "unfinished_ids", lambda it: (monkeypatch.undo(), outlive(), unfinished(it))[-1]
    )
    world.runtime.removed.clear()
    world.clock.now += 1
    assert not old.run_once()
    assert world.runtime.removed == [job_id], "the successor removed it, once"


def test_a_scheduler_asks_for_its_lease_right_before_it_starts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, outcome = world.submit(), FakeRuntime.read_outcome

    def slow(*asked: Any, **more: Any) -> Any:
        monkeypatch.undo()
        world.clock.now += world.settings.lease_s
        world.new_scheduler().run_once()
        return outcome(*asked, **more)

    monkeypatch.setattr(FakeRuntime, "read_outcome", slow)
    assert not world.scheduler.run_once()
    assert world.runtime.started == [(job_id, 1)]


def test_a_write_of_a_lease_that_was_taken_over_is_dropped(world: World) -> None:
    job_id = world.submit()
    writes = SchedulerWrites(world.database, world.clock, HistoryLimits())
    assert not writes.admit(world.job(job_id), 99, workers=1, timeout_s=1)
    assert not writes.record_cluster(99, nodes=[])
    assert world.job(job_id).status == Status.QUEUED


def test_a_decision_on_a_row_that_changed_meanwhile_is_dropped(world: World) -> None:
    job_id = world.submit()
    token = Lease(world.database, owner="me", clock=world.clock, lease_s=3).hold() or 0
    writes = SchedulerWrites(world.database, world.clock, HistoryLimits())
    seen = world.job(job_id)
    world.override(job_id)
    assert not writes.admit(seen, token, workers=1, timeout_s=1)
    assert writes.admit(world.job(job_id), token, workers=1, timeout_s=1)


def test_records_that_come_twice_are_stored_and_told_once(world: World) -> None:
    world.runtime.repeats = True
    job = world.finish(world.submit())
    assert [event.data["epoch"] for event in world.events(job.id, "epoch")] == [0, 1, 2, 3]
    assert len(world.events(job.id, "checkpoint")) == 4


def test_a_lost_supervisor_is_followed_by_another_attempt(world: World) -> None:
    job_id = world.submit()
    world.turn_until(lambda: world.epochs(job_id) == [0, 1])
    world.runtime.lose(job_id)
    job = world.finish(job_id)
    assert (job.status, job.attempt) == (Status.SUCCEEDED, 2)
    assert world.epochs(job_id) == [0, 1, 2, 3]
    assert [row.reason for row in world.history.attempts(job_id)] == [
        Reason.WORKERS_LOST,
        Reason.COMPLETED,
    ]
    assert world.runtime.removed[0] == job_id, (
        "what is out of sight must not come back beside its successor"
    )


def test_a_supervisor_that_is_out_of_sight_for_a_moment_is_adopted_again(world: World) -> None:
    job_id = world.submit()
    world.turn_until(lambda: world.epochs(job_id) == [0, 1])
    world.runtime.jobs[job_id].alive = False
    world.turn(8)
    world.runtime.jobs[job_id].alive = True
    assert world.finish(job_id).attempt == 1


@pytest.fixture
def strict(tmp_path: Path, database_url: str) -> Iterator[World]:
    """A service that follows a lost attempt by one other attempt without progress."""
    world = World(tmp_path, database_url=database_url, max_lost_attempts=1)
    yield world
    world.close()


def test_losses_with_progress_in_between_are_never_the_jobs_failure(strict: World) -> None:
    job_id = strict.submit(training={"epochs": 12})
    for epoch in range(strict.settings.max_lost_attempts + 2):
        strict.turn_until(lambda epoch=epoch: epoch in strict.epochs(job_id))
        strict.runtime.lose(job_id)
    assert strict.finish(job_id).status == Status.SUCCEEDED


def test_losses_without_progress_end_in_lost(strict: World) -> None:
    job_id = strict.submit()
    for attempt in range(1, strict.settings.max_lost_attempts + 2):
        strict.turn_until(
            lambda attempt=attempt: strict.runtime.started[-1:] == [(job_id, attempt)]
        )
        strict.runtime.jobs[job_id].phase = "running"
        strict.runtime.stuck.add(job_id)
        _begin(strict, job_id)
        strict.runtime.lose(job_id)
    job = strict.finish(job_id)
    assert (job.status, job.reason) == (Status.FAILED, Reason.LOST)
    assert f"the limit is {strict.settings.max_lost_attempts}" in job.message


def test_what_the_journal_of_a_lost_job_holds_is_stored_with_its_end(world: World) -> None:
    job_id = world.submit()
    world.turn_until(lambda: world.epochs(job_id) == [0])
    with world.database.write() as session:
        session.get_one(JobRow, job_id).lost_attempts = 10**6
    world.runtime.drain(job_id, Cursor())
    fake = world.runtime.jobs[job_id]
    fake.journal = [
        record for record in fake.journal if not isinstance(record.payload, CheckpointRecord)
    ]
    world.runtime.lose(job_id)
    job = world.finish(job_id)
    assert (job.reason, world.epochs(job_id)) == (Reason.LOST, [0, 1])


def test_a_checkpoint_that_only_the_journal_knows_ends_a_row_of_losses(world: World) -> None:
    job_id = world.submit()
    world.train(job_id)
    with world.database.write() as session:
        session.get_one(JobRow, job_id).lost_attempts = world.settings.max_lost_attempts
    world.runtime.drain(job_id, Cursor())
    world.runtime.lose(job_id)
    assert world.finish(job_id).status == Status.SUCCEEDED


def _begin(world: World, job_id: str) -> None:
    """The job begins to train, and never gets further."""
    world.runtime.stuck.discard(job_id)
    world.runtime.jobs[job_id].phase = "starting"
    world.train(job_id)
    world.runtime.stuck.add(job_id)


def test_a_worker_group_that_breaks_is_shown_and_comes_back(world: World) -> None:
    job_id = world.submit()
    world.turn_until(lambda: world.epochs(job_id) == [0, 1])
    world.runtime.break_group(job_id)
    world.turn_until(lambda: world.job(job_id).status == Status.RECOVERING)
    assert world.job(job_id).reason == Reason.WORKERS_LOST
    assert world.finish(job_id).status == Status.SUCCEEDED
    assert {row.generation for row in world.history.epochs(job_id)} == {1, 2}


def test_decisions_and_epochs_of_work_that_is_repeated_are_void(world: World) -> None:
    job_id = world.submit(training={"epochs": 8}, checkpoint={"every_epochs": 1})
    world.turn_until(lambda: world.epochs(job_id) == [0, 1, 2])
    world.runtime.jobs[job_id].saved = Saved()
    world.runtime.break_group(job_id)
    world.turn_until(lambda: world.job(job_id).status == Status.RECOVERING)
    world.turn_until(lambda: world.job(job_id).status == Status.RUNNING)
    assert {row.generation for row in world.history.decisions(job_id)} == {2}
    assert world.epochs(job_id) == []
    assert [event.data["epoch"] for event in world.events(job_id, "epoch")][:3] == [0, 1, 2]
    assert world.finish(job_id).status == Status.SUCCEEDED
    assert {row.generation for row in world.history.epochs(job_id)} == {2}


def test_records_found_only_in_the_end_file_are_stored_before_the_end_is_shown(
    world: World,
) -> None:
    job_id = world.submit()
    world.train(job_id)
    fake = world.runtime.jobs[job_id]
    while fake.phase != "ended":
        world.runtime.drain(job_id, Cursor())
    fake.waiting = []
    job = world.finish(job_id)
    assert job.status == Status.SUCCEEDED
    assert world.epochs(job_id) == [0, 1, 2, 3]


def test_a_task_that_raises_fails_the_job_with_its_sentence(world: World) -> None:
    job = world.finish(world.submit(task={"name": "synthetic", "options": {"raise_at_step": 3}}))
    assert (job.status, job.reason) == (Status.FAILED, Reason.TASK_RAISED)
    assert "raised on purpose in step 3" in job.message


def test_a_loss_that_is_not_finite_fails_the_job(world: World) -> None:
    job = world.finish(world.submit(task={"name": "synthetic", "options": {"nan_at_step": 3}}))
    assert (job.status, job.reason) == (Status.FAILED, Reason.LOSS_NOT_FINITE)


def test_start_that_takes_too_long_is_repeated(world: World) -> None:
    world.runtime.slow_start = 10_000
    job_id = world.submit()
    world.turn_until(lambda: world.job(job_id).status == Status.STARTING)
    world.clock.now += world.settings.start_timeout_s
    world.runtime.slow_start = 0
    world.turn()
    assert world.history.attempts(job_id)[0].reason == Reason.START_TIMED_OUT
    assert world.finish(job_id).attempt == 2


def test_a_running_job_that_is_cancelled_saves_and_stops(world: World) -> None:
    job_id = world.submit()
    world.train(job_id)
    world.cancel(job_id)
    assert world.job(job_id).status == Status.STOPPING
    job = world.finish(job_id)
    assert (job.status, job.reason) == (Status.CANCELLED, Reason.CANCELLED_BY_USER)
    assert world.history.checkpoints(job_id)


def test_a_job_that_does_not_stop_is_removed_after_the_grace(world: World) -> None:
    job_id = world.submit()
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    world.cancel(job_id)
    world.turn(3)
    assert job_id not in world.runtime.removed
    world.clock.now += world.settings.cancel_grace_s
    assert world.finish(job_id).status == Status.CANCELLED
    assert job_id in world.runtime.removed


def test_a_waiting_job_is_cancelled_at_once(world: World) -> None:
    job_id = world.submit()
    world.cancel(job_id)
    assert world.job(job_id).status == Status.CANCELLED
    world.turn(2)
    assert world.runtime.started == []


def test_a_supervisor_of_a_job_that_has_ended_is_removed(world: World) -> None:
    job_id = world.submit()
    world.train(job_id)
    with world.database.write() as session:
        session.merge(world.job(job_id)).status = Status.FAILED.value
    world.turn(2)
    assert world.runtime.removed == [job_id]


def test_a_job_too_large_for_the_cluster_waits_and_says_why(world: World) -> None:
    job_id = world.submit(workers={"min": 4, "max": 4, "cpus": 2})
    world.turn(2)
    job = world.job(job_id)
    assert (job.status, job.reason) == (Status.QUEUED, Reason.NEVER_FITS)
    assert "needs 4 workers of 2 CPU each" in job.message
    assert "holds at most 2" in job.message
    world.runtime.cpus.append(4.0)
    assert world.finish(job_id).status == Status.SUCCEEDED


def test_a_job_without_room_waits_for_the_one_before_it(world: World) -> None:
    first = world.submit(workers={"min": 2, "max": 4})
    second = world.submit(workers={"min": 2, "max": 4})
    world.train(first)
    waiting = world.job(second)
    assert (waiting.status, waiting.reason) == (Status.QUEUED, Reason.WAITING_FOR_ROOM)
    assert world.finish(first).status == world.finish(second).status == Status.SUCCEEDED


def test_an_unreachable_cluster_is_said_and_survived(world: World) -> None:
    job_id = world.submit()
    world.runtime.down = True
    world.turn(2)
    assert world.job(job_id).reason == Reason.CLUSTER_UNREACHABLE
    world.runtime.down = False
    world.train(job_id)
    world.runtime.down = True
    world.turn(5)
    assert world.job(job_id).status == Status.RUNNING
    world.runtime.down = False
    assert world.finish(job_id).attempt == 1


def test_running_jobs_are_drained_in_one_call_a_turn(world: World) -> None:
    jobs = [world.submit(workers={"min": 1, "max": 1}, training={"epochs": 300}) for _ in range(3)]
    for job_id in jobs:
        world.train(job_id)
    world.runtime.batches.clear()
    world.turn(4)
    assert world.runtime.batches == [sorted(jobs)] * 4
