"""Jobs that give up capacity for more important ones."""

from __future__ import annotations

from accordion_service.domain.jobs.statuses import Desired, Reason, Status
from tests.api.world import World

LONG = {"training": {"epochs": 40}}
PAIR = {**LONG, "workers": {"min": 2, "max": 2}}
WIDE = {**LONG, "workers": {"min": 1, "max": 4}}


def preempt(world: World, **job: object) -> tuple[str, str]:
    """Start a job that fills the cluster and a more important one; return both once the first one
    is being paused.
    """
    low = world.submit(**{**LONG, "workers": {"min": 4, "max": 4}, **job})
    world.train(low)
    high = world.submit(priority=80, **PAIR)
    assert world.reach(low, Status.PAUSING).reason == Reason.PREEMPTED
    return low, high


def told(world: World, job_id: str) -> list[str]:
    """Why the scheduler changed the job's allocation, in order."""
    events = [event.data for event in world.events(job_id, "workers")]
    return [data["message"] for data in events if data["what"] == "granted"]


def test_a_more_important_job_takes_workers_above_the_minimum_and_they_come_back(
    world: World,
) -> None:
    low = world.submit(**WIDE)
    world.train(low, workers=4)
    high = world.submit(priority=80, **PAIR)
    world.train(high, workers=2)
    assert world.job(low).world_size == 2
    assert told(world, low)[-1] == f"job {high} with priority 80 needs the capacity"
    world.cancel(high)
    world.train(low, workers=4)
    assert world.finish(low).attempt == 1
    assert world.epochs(low) == list(range(40))


def test_a_job_of_equal_priority_waits_for_capacity(world: World) -> None:
    first = world.submit(**WIDE)
    world.train(first, workers=4)
    second = world.submit(**LONG)
    world.turn(10)
    assert (world.job(first).world_size, world.job(second).status) == (4, Status.QUEUED)


def test_no_job_is_paused_unless_the_settings_allow_it(world: World) -> None:
    low = world.submit(**PAIR)
    other = world.submit(**PAIR)
    world.train(other)
    world.submit(priority=80, **PAIR)
    world.turn(10)
    assert [world.job(job).status for job in (low, other)] == [Status.RUNNING] * 2


def test_a_preempted_job_returns_to_its_place_in_the_queue(preempting: World) -> None:
    world = preempting
    first, low = world.submit(**PAIR), world.submit(**PAIR)
    world.train(low)
    high = world.submit(priority=80, **PAIR)
    world.train(high)
    assert (world.job(low).status, world.job(low).desired) == (Status.QUEUED, Desired.RUN)
    assert world.job(first).status == Status.RUNNING
    later = world.submit(**PAIR)
    world.cancel(high)
    world.train(low)
    assert world.job(later).status == Status.QUEUED
    assert world.finish(low).attempt == 2
    assert world.epochs(low) == list(range(40))
    assert world.history.attempts(low)[0].reason == Reason.PREEMPTED


def test_a_job_that_is_paused_by_its_user_while_it_is_preempted_stays_paused(
    preempting: World,
) -> None:
    low, high = preempt(preempting)
    preempting.pause(low)
    assert preempting.reach(low, Status.PAUSED).reason == Reason.PAUSED_BY_USER
    preempting.train(high)


def test_resuming_a_job_that_is_preempted_changes_nothing(preempting: World) -> None:
    low, high = preempt(preempting)
    preempting.resume(low)
    assert preempting.job(low).reason == Reason.PREEMPTED
    preempting.train(high)
    assert preempting.job(low).status == Status.QUEUED


def test_a_job_can_be_cancelled_while_it_is_preempted(preempting: World) -> None:
    low, high = preempt(preempting)
    preempting.cancel(low)
    assert preempting.finish(low).status == Status.CANCELLED
    preempting.train(high)


def test_a_job_that_does_not_save_in_time_is_preempted_by_force(preempting: World) -> None:
    low, high = preempt(preempting)
    preempting.runtime.stuck.add(low)
    preempting.turn(3)
    assert low not in preempting.runtime.removed
    preempting.clock.now += preempting.settings.cancel_grace_s
    preempting.train(high)
    assert low in preempting.runtime.removed
    assert preempting.job(low).status == Status.QUEUED


def test_a_job_that_vanishes_while_it_is_preempted_has_lost_no_attempt(preempting: World) -> None:
    low, high = preempt(preempting)
    preempting.runtime.lose(low)
    preempting.train(high)
    assert (preempting.job(low).status, preempting.job(low).lost_attempts) == (Status.QUEUED, 0)


def test_a_job_that_was_never_trained_is_preempted_too(preempting: World) -> None:
    low = preempting.submit(**{**LONG, "workers": {"min": 4, "max": 4}})
    preempting.reach(low, Status.STARTING)
    high = preempting.submit(priority=80, **PAIR)
    preempting.train(high)
    preempting.cancel(high)
    assert preempting.finish(low).status == Status.SUCCEEDED
    assert preempting.epochs(low) == list(range(40))
