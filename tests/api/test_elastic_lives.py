"""Jobs whose workers come and go: resized, paused, resumed, and fitted to a cluster that
changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accordion_service.domain.jobs.statuses import Desired, Reason, Status
from accordion_service.errors import Conflict, Invalid
from accordion_workers.records.contract import Cursor, PausedRecord, Record
from tests.api.world import TURN_S, World

LONG = {"training": {"epochs": 40}}
SHORT = {"training": {"epochs": 12}}
WIDE = {"workers": {"min": 1, "max": 4}, **LONG}


def told(world: World, job_id: str, what: str) -> list[dict[str, Any]]:
    """What `workers` events of one kind say, in order."""
    return [event.data for event in world.events(job_id, "workers") if event.data["what"] == what]


def test_a_running_job_is_resized_and_loses_no_step(world: World) -> None:
    job_id = world.submit(**SHORT)
    world.train(job_id, workers=2)
    world.resize(job_id, 1, 3)
    world.reach(job_id, Status.RESIZING)
    assert world.job(job_id).reason == Reason.RESIZE_ORDERED
    world.train(job_id, workers=3)
    assert (
        world.job(job_id).message
        == "3 workers train, resized from 2 with 0.8 s lost, from checkpoint epoch-00002"
    )
    assert [(one["cause"], one["old"], one["new"]) for one in told(world, job_id, "resizing")] == [
        ("ordered", 2, 3)
    ]
    newest = told(world, job_id, "started")[-1]
    assert (newest["cause"], newest["previous_world_size"], newest["steps_rolled_back"]) == (
        "resize",
        2,
        0,
    )
    assert world.finish(job_id).attempt == 1
    assert world.epochs(job_id) == list(range(12))


def test_what_changes_of_group_cost_is_counted_for_the_job_and_its_attempt(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id, workers=2)
    world.resize(job_id, 1, 3)
    world.train(job_id, workers=3)
    world.runtime.break_group(job_id)
    world.reach(job_id, Status.RECOVERING)
    world.train(job_id)
    job, [attempt] = world.job(job_id), world.history.attempts(job_id)
    assert job.tally == attempt.tally
    assert (job.tally["resizes"], job.tally["recoveries"]) == (
        {"ordered": 1},
        {"infrastructure": 1},
    )
    assert job.tally["seconds_lost"] == pytest.approx(1.6)
    assert job.tally["steps_rolled_back"] >= 0


def test_a_job_that_waits_for_more_than_there_is_starts_once_it_asks_for_less(world: World) -> None:
    job_id = world.submit(workers={"min": 3, "max": 4, "cpus": 2})
    world.turn(2)
    assert world.job(job_id).reason == Reason.NEVER_FITS
    world.resize(job_id, 1, 2)
    world.train(job_id, workers=2)


def test_running_job_grows_into_capacity_that_no_job_waits_for(world: World) -> None:
    first = world.submit(workers={"min": 3, "max": 3}, training={"epochs": 4})
    second = world.submit(**WIDE)
    world.train(second, workers=1)
    world.finish(first)
    world.train(second, workers=4)
    [grant] = told(world, second, "granted")
    assert (grant["old"], grant["new"], grant["message"]) == (
        1,
        4,
        "there is free capacity and no job waits for it",
    )


def test_growing_job_never_overtakes_a_waiting_job(world: World) -> None:
    first = world.submit(workers={"min": 1, "max": 2}, **LONG)
    world.train(first, workers=2)
    waits = world.submit(workers={"min": 3, "max": 3})
    world.turn(2)
    world.resize(first, 1, 4)
    world.turn(4)
    assert world.job(first).workers == 2
    world.cancel(waits)
    world.train(first, workers=4)


@pytest.mark.parametrize("how", ["draining", "dead"])
def test_a_node_that_leaves_takes_workers_and_one_that_comes_back_gives_them(
    world: World, how: str
) -> None:
    world.runtime.cpus = [2.0, 2.0]
    job_id = world.submit(**WIDE)
    world.train(job_id, workers=4)
    getattr(world.runtime, how).add(1)
    world.train(job_id, workers=2)
    assert (
        told(world, job_id, "granted")[-1]["message"]
        == "the nodes that accept workers have no capacity for more"
    )
    getattr(world.runtime, how).clear()
    world.train(job_id, workers=4)
    assert len(told(world, job_id, "granted")) == 2


def test_a_job_never_falls_below_its_minimum(world: World) -> None:
    world.runtime.cpus = [2.0, 2.0]
    job_id = world.submit(workers={"min": 3, "max": 4}, **LONG)
    world.train(job_id, workers=4)
    world.runtime.dead = {0, 1}
    world.runtime.cpus.append(1.0)
    world.train(job_id, workers=3)
    assert world.runtime.jobs[job_id].orders.size.model_dump() == {"min": 3, "target": 3}


def test_a_minimum_above_what_there_is_room_for_does_not_stop_a_job_that_trains(
    world: World,
) -> None:
    other = world.submit(workers={"min": 2, "max": 2}, **LONG)
    world.train(other)
    job_id = world.submit(**LONG)
    world.train(job_id, workers=2)
    world.resize(job_id, 3, 4)
    world.turn(4)
    assert world.job(job_id).status == Status.RUNNING
    assert world.runtime.jobs[job_id].orders.size.model_dump() == {"min": 2, "target": 2}
    world.cancel(other)
    world.train(job_id, workers=4)


def test_a_job_without_its_minimum_says_what_it_waits_for_and_keeps_the_reason(
    world: World,
) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.runtime.break_group(job_id)
    world.runtime.jobs[job_id].starts_in = 8
    world.runtime.jobs[job_id].says = "1 of 2 worker processes ready, 2 needed"
    world.turn(3)
    job = world.job(job_id)
    assert (job.status, job.reason) == (Status.RECOVERING, Reason.WORKERS_LOST)
    assert job.message == "1 of 2 worker processes ready, 2 needed"
    world.train(job_id)


def test_what_a_supervisor_said_before_its_group_broke_is_not_said_of_the_recovery(
    tmp_path: Path, database_url: str
) -> None:
    world = World(tmp_path, database_url=database_url, survey_interval_s=8 * TURN_S)
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.runtime.jobs[job_id].says = "worker group 1 starts with 2 of 2 workers"
    world.turn(8)
    world.runtime.break_group(job_id)
    world.runtime.jobs[job_id].starts_in = 8
    world.turn(3)
    assert world.job(job_id).message.startswith("the worker group ended: ")
    world.close()


def test_another_attempt_starts_with_what_is_granted_then(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id, workers=2)
    world.resize(job_id, 1, 1)
    world.train(job_id, workers=1)
    world.runtime.lose(job_id)
    world.resize(job_id, 1, 3)
    world.turn_until(lambda: world.job(job_id).attempt == 2)
    world.train(job_id, workers=3)
    assert told(world, job_id, "resizing")[1:] == []


def test_an_attempt_that_is_lost_with_its_machines_is_counted_as_a_failed_group(
    world: World,
) -> None:
    world.runtime.ticks_per_epoch = 4
    job_id = world.submit(**LONG)
    jobs = world.runtime.jobs
    world.turn_until(lambda: job_id in jobs and jobs[job_id].tick == 3)
    unsaved = world.job(job_id).progress["step"] - jobs[job_id].saved.step  # type: ignore[index]
    assert unsaved > 0
    world.runtime.lose(job_id)
    world.turn_until(lambda: world.job(job_id).attempt == 2)
    assert world.job(job_id).failures == 1
    world.train(job_id)
    job, second = world.job(job_id), world.history.attempts(job_id)[1]
    assert job.tally == second.tally
    assert (job.failures, job.tally["recoveries"]) == (1, {"infrastructure": 1})
    assert job.tally["steps_rolled_back"] == unsaved
    assert job.tally["seconds_lost"] > 0
    world.pause(job_id)
    world.reach(job_id, Status.PAUSED)
    world.resume(job_id)
    world.train(job_id)
    again = world.job(job_id)
    assert (again.attempt, again.failures, again.tally) == (3, 1, job.tally)


def test_paused_job_holds_no_workers_and_continues_from_its_checkpoint(world: World) -> None:
    job_id = world.submit(**SHORT)
    world.turn_until(lambda: world.epochs(job_id) == [0, 1])
    world.pause(job_id)
    assert world.job(job_id).status == Status.PAUSING
    job = world.reach(job_id, Status.PAUSED)
    assert (job.reason, job.workers, job.world_size, job.deadline) == (
        Reason.PAUSED_BY_USER,
        0,
        0,
        None,
    )
    assert not world.runtime.jobs[job_id].alive
    world.turn(5)
    assert world.history.attempts(job_id)[0].ended_at is not None
    world.resume(job_id)
    assert world.job(job_id).status == Status.QUEUED
    assert world.finish(job_id).attempt == 2
    assert world.epochs(job_id) == list(range(12))
    assert [row.reason for row in world.history.attempts(job_id)] == [
        Reason.PAUSED_BY_USER,
        Reason.COMPLETED,
    ]


def test_a_waiting_job_is_paused_at_once_and_frees_the_queue(world: World) -> None:
    job_id = world.submit()
    world.pause(job_id)
    assert world.job(job_id).status == Status.PAUSED
    behind = world.submit()
    world.train(behind)
    assert world.runtime.started == [(behind, 1)]
    world.resume(job_id)
    assert world.finish(job_id).status == Status.SUCCEEDED


def test_a_job_that_does_not_pause_in_time_is_paused_by_force(world: World) -> None:
    job_id = world.submit(**SHORT)
    world.turn_until(lambda: world.epochs(job_id) == [0, 1])
    world.runtime.stuck.add(job_id)
    world.pause(job_id)
    world.turn(3)
    assert job_id not in world.runtime.removed
    world.clock.now += world.settings.cancel_grace_s
    world.reach(job_id, Status.PAUSED)
    assert job_id in world.runtime.removed
    world.runtime.stuck.clear()
    world.resume(job_id)
    assert world.finish(job_id).status == Status.SUCCEEDED
    assert world.epochs(job_id) == list(range(12))


def test_a_job_that_vanishes_while_it_pauses_is_paused(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.pause(job_id)
    world.runtime.lose(job_id)
    assert world.reach(job_id, Status.PAUSED).lost_attempts == 0


def test_a_job_that_finishes_while_it_pauses_has_succeeded(world: World) -> None:
    job_id = world.submit(training={"epochs": 1})
    world.train(job_id)
    world.runtime.drain(job_id, Cursor())
    world.pause(job_id)
    assert world.finish(job_id).status == Status.SUCCEEDED


def test_job_resumed_while_pausing_pauses_first_and_then_continues(world: World) -> None:
    job_id = world.submit(**SHORT)
    world.train(job_id)
    world.pause(job_id)
    world.resume(job_id)
    job = world.job(job_id)
    assert (job.status, job.desired) == (Status.PAUSING, Desired.RUN)
    assert world.finish(job_id).attempt == 2
    assert Status.PAUSED not in [event.data["status"] for event in world.events(job_id, "status")]


@pytest.mark.parametrize("status", [Status.PAUSING, Status.PAUSED])
def test_a_job_that_pauses_or_is_paused_can_be_cancelled(world: World, status: Status) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.pause(job_id)
    world.reach(job_id, status)
    world.cancel(job_id)
    job = world.finish(job_id)
    assert (job.status, job.reason) == (Status.CANCELLED, Reason.CANCELLED_BY_USER)
    assert world.events(job_id)[-1].type == "end"


def test_a_job_that_had_paused_when_it_was_cancelled_is_cancelled(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.pause(job_id)
    world.turn()
    while world.runtime.jobs[job_id].phase != "ended":
        world.runtime.drain(job_id, Cursor())
    world.cancel(job_id)
    assert world.finish(job_id).status == Status.CANCELLED


def test_an_attempt_whose_pause_was_withdrawn_is_followed_by_another(
    world: World,
) -> None:
    job_id = world.submit(**SHORT)
    world.train(job_id)
    fake = world.runtime.jobs[job_id]
    paused = PausedRecord(step=fake.step)
    fake.waiting.append(
        Record(
            attempt=1, generation=fake.generation, seq=fake.seq, time=world.clock(), payload=paused
        )
    )
    fake.phase = "ended"
    assert world.finish(job_id).attempt == 2


def test_asking_again_for_what_is_asked_changes_nothing(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.resize(job_id, 1, 3)
    world.train(job_id, workers=3)
    before = world.job(job_id)
    world.resize(job_id, 1, 3)
    world.resume(job_id)
    assert (world.job(job_id).version, world.job(job_id).etag_version) == (
        before.version,
        before.etag_version,
    )
    world.pause(job_id)
    before = world.job(job_id)
    world.pause(job_id)
    assert world.job(job_id).version == before.version


@pytest.mark.parametrize(
    ("min_workers", "max_workers", "sentence"),
    [
        (3, 2, "workers.min is 3, above workers.max 2; lower min or raise max"),
        (1, 5, "gives 4 shares for workers.max 5; lower micro_batch or workers.max"),
    ],
)
def test_numbers_that_no_spec_could_hold_are_refused(
    world: World, min_workers: int, max_workers: int, sentence: str
) -> None:
    job_id = world.submit()
    with pytest.raises(Invalid) as refused:
        world.resize(job_id, min_workers, max_workers)
    assert sentence in str(refused.value)
    assert world.job(job_id).etag_version == 1


def test_a_job_that_is_over_or_on_its_way_there_is_not_steered_any_more(world: World) -> None:
    job_id = world.submit()
    world.train(job_id)
    world.cancel(job_id)
    for what, steer in {
        "resized": lambda: world.resize(job_id, 1, 1),
        "paused": lambda: world.pause(job_id),
    }.items():
        with pytest.raises(Conflict, match=f"is being cancelled and cannot be {what} any more"):
            steer()
    world.finish(job_id)
    with pytest.raises(Conflict, match="is CANCELLED and cannot be resumed any more"):
        world.resume(job_id)
