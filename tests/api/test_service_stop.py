"""Jobs of a service that is stopped with its cluster."""

from __future__ import annotations

import threading
import time

import pytest

from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.scheduler.loop import run_scheduler
from tests.api.world import World

LONG = {"training": {"epochs": 40}}


def stop(world: World, grace_s: float = 30.0) -> None:
    """Stop the scheduler with its cluster, as far as the jobs are concerned."""
    world.scheduler.begin_stop(grace_s)
    world.turn_until(lambda: not world.scheduler.has_attempts())


def start_again(world: World) -> None:
    world.scheduler.release()
    world.scheduler = world.new_scheduler()


def test_running_jobs_save_before_the_cluster_stops_and_continue_after_it(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.turn(4)
    stop(world)
    [attempt] = world.history.attempts(job_id)
    job = world.job(job_id)
    assert (attempt.reason, attempt.ended_at) == (Reason.SERVICE_STOPPED, world.clock.now)
    assert (job.status, job.reason) == (Status.QUEUED, Reason.SERVICE_STOPPED)
    start_again(world)
    assert world.finish(job_id).attempt == 2
    assert world.epochs(job_id) == list(range(40))


def test_a_job_that_does_not_save_in_time_ends_its_attempt_with_the_service(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    stop(world, grace_s=10.0)
    [attempt] = world.history.attempts(job_id)
    assert attempt.message.startswith("the service was stopped before attempt 1 had saved")
    assert world.job(job_id).lost_attempts == 0
    world.runtime.stuck.clear()
    start_again(world)
    assert world.finish(job_id).attempt == 2


def test_a_job_that_starts_while_the_service_stops_returns_to_the_queue(world: World) -> None:
    world.runtime.slow_start = 1000
    job_id = world.submit(**LONG)
    world.reach(job_id, Status.STARTING)
    stop(world)
    assert world.job(job_id).message == "the service was stopped before attempt 1 trained"


def test_no_job_starts_while_the_service_stops(world: World) -> None:
    world.scheduler.begin_stop(30.0)
    job_id = world.submit(**LONG)
    world.turn(5)
    assert (world.job(job_id).status, world.runtime.started) == (Status.QUEUED, [])


def test_a_job_that_its_user_pauses_or_cancels_while_the_service_stops_stays_that(
    world: World,
) -> None:
    paused, cancelled = world.submit(**LONG), world.submit(**LONG)
    world.train(cancelled)
    world.runtime.stuck |= {paused, cancelled}
    world.pause(paused)
    world.cancel(cancelled)
    stop(world, grace_s=10.0)
    assert [world.job(job).status for job in (paused, cancelled)] == ["PAUSED", "CANCELLED"]


@pytest.mark.parametrize("is_hurried", [False, True])
def test_a_stopped_scheduler_waits_for_jobs_that_save_unless_it_is_hurried(
    world: World, *, is_hurried: bool
) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    world.scheduler.release()
    stopped, at_once = threading.Event(), threading.Event()
    stopped.set()
    if is_hurried:
        at_once.set()
    settings = world.settings.model_copy(update={"cancel_grace_s": 2.0})
    begun = time.monotonic()
    run_scheduler(settings, world.runtime, stop=stopped, at_once=at_once)
    assert (time.monotonic() - begun >= 2.0) != is_hurried
    assert world.job(job_id).reason == Reason.SERVICE_STOPPED
