"""Jobs that fail if they have not ended after a time, whatever they did in it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.jobs.statuses import Desired, Reason, Status
from accordion_service.errors import Conflict
from tests.api.team import JOBS
from tests.api.world import World

LIMIT_S = 60
TOTAL = {"training": {"epochs": 4000}, "limits": {"total_seconds": LIMIT_S}}
MESSAGE = (
    "it did not end within 60 s, the limit of its spec (limits.total_seconds); retry it to give it"
    " as long again, or clone it with a higher limit"
)


def check_timed_out(world: World, job_id: str) -> None:
    ended = world.finish(job_id)
    assert (ended.status, ended.reason, ended.message) == (
        Status.FAILED,
        Reason.TIMED_OUT,
        MESSAGE,
    )


def test_a_job_that_trains_at_its_limit_saves_and_fails(client: TestClient, world: World) -> None:
    job_id = world.submit(**TOTAL)
    world.train(job_id)
    world.clock.now += LIMIT_S
    stopping = world.reach(job_id, Status.STOPPING)
    assert stopping.message.startswith("saving a checkpoint: it did not end within 60 s")
    check_timed_out(world, job_id)
    assert world.history.checkpoints(job_id)[-1].step == world.runtime.jobs[job_id].step
    assert world.runtime.jobs[job_id].end is not None, "it was stopped, not killed"
    [attempt] = client.get(f"{JOBS}/{job_id}/attempts").json()["items"]
    assert attempt["reason"] == Reason.TIMED_OUT


def test_a_job_that_ends_in_time_succeeds(world: World) -> None:
    job_id = world.submit(limits={"total_seconds": LIMIT_S})
    assert world.finish(job_id).status == Status.SUCCEEDED
    world.clock.now += LIMIT_S
    world.turn(2)
    assert world.job(job_id).status == Status.SUCCEEDED


def test_a_job_in_the_queue_fails_at_its_limit(world: World) -> None:
    job_id = world.submit(**TOTAL, workers={"min": 4, "max": 4, "cpus": 4})
    world.reach(job_id, Status.QUEUED)
    world.clock.now += LIMIT_S - 1
    world.turn()
    assert world.job(job_id).status == Status.QUEUED
    world.clock.now += 1
    world.turn()
    check_timed_out(world, job_id)
    assert world.job(job_id).attempt == 0


def test_a_paused_job_fails_at_its_limit_and_goes_on_when_it_is_retried(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(**TOTAL)
    world.train(job_id)
    world.pause(job_id)
    world.reach(job_id, Status.PAUSED)
    world.clock.now += LIMIT_S
    world.turn()
    check_timed_out(world, job_id)
    assert client.post(f"{JOBS}/{job_id}/retry").status_code == 202
    world.train(job_id)
    assert (world.job(job_id).desired, world.job(job_id).attempt) == (Desired.RUN, 2)


def test_a_pause_does_not_give_a_job_more_time(world: World) -> None:
    job_id = world.submit(**TOTAL)
    world.train(job_id)
    world.pause(job_id)
    world.reach(job_id, Status.PAUSED)
    world.clock.now += LIMIT_S / 2
    world.resume(job_id)
    world.train(job_id)
    world.clock.now += LIMIT_S / 2
    check_timed_out(world, job_id)


def test_a_job_that_starts_fails_at_its_limit(world: World) -> None:
    world.runtime.slow_start = 10**6
    job_id = world.submit(**TOTAL)
    world.reach(job_id, Status.STARTING)
    world.clock.now += LIMIT_S
    world.turn()
    assert world.job(job_id).message.startswith("stopping its workers: it did not end within")
    world.clock.now += world.settings.cancel_grace_s
    check_timed_out(world, job_id)


def test_a_job_that_pauses_at_its_limit_fails(world: World) -> None:
    job_id = world.submit(**TOTAL)
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    world.pause(job_id)
    world.clock.now += LIMIT_S
    world.reach(job_id, Status.STOPPING)
    world.runtime.stuck.discard(job_id)
    check_timed_out(world, job_id)


def test_a_job_without_workers_fails_though_the_cluster_is_away(world: World) -> None:
    waiting, paused = world.submit(**TOTAL), world.submit(**TOTAL)
    world.pause(paused)
    world.runtime.down = True
    world.clock.now += LIMIT_S
    world.turn()
    for job_id in (waiting, paused):
        assert world.has_ended(job_id)
        check_timed_out(world, job_id)


def test_workers_out_of_reach_have_their_time_to_save_when_the_cluster_is_back(
    world: World,
) -> None:
    job_id = world.submit(**TOTAL)
    world.train(job_id)
    world.runtime.down = True
    world.clock.now += LIMIT_S
    world.turn(2)
    assert (world.job(job_id).status, world.job(job_id).reason) == (
        Status.STOPPING,
        Reason.TIMED_OUT,
    )
    world.clock.now += 10 * world.settings.cancel_grace_s
    world.turn()
    world.runtime.down = False
    check_timed_out(world, job_id)
    assert world.runtime.jobs[job_id].end is not None, "it was stopped, not killed"


def test_workers_that_do_not_stop_after_the_cluster_is_back_are_killed(world: World) -> None:
    job_id = world.submit(**TOTAL)
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    world.runtime.down = True
    world.clock.now += LIMIT_S
    world.turn()
    world.runtime.down = False
    world.turn(2)
    assert world.job(job_id).status == Status.STOPPING
    world.clock.now += world.settings.cancel_grace_s
    check_timed_out(world, job_id)
    assert world.runtime.jobs[job_id].end is None


def test_a_job_that_starts_later_has_all_of_its_time_then(client: TestClient, world: World) -> None:
    start = world.clock.now + 600
    start_at = datetime.fromtimestamp(start, UTC).isoformat()
    job_id = world.submit(**TOTAL, start_at=start_at)
    view = client.get(f"{JOBS}/{job_id}").json()
    assert datetime.fromisoformat(view["times_out_at"]).timestamp() == start + LIMIT_S
    world.turn()
    world.clock.now += 600
    world.train(job_id)
    world.clock.now += LIMIT_S
    check_timed_out(world, job_id)


def test_a_retry_begins_anew(client: TestClient, world: World) -> None:
    job_id = world.submit(**TOTAL)
    world.train(job_id)
    world.clock.now += LIMIT_S
    check_timed_out(world, job_id)
    world.clock.now += 1000
    client.post(f"{JOBS}/{job_id}/retry")
    world.train(job_id)
    world.clock.now += LIMIT_S / 2
    world.turn(4)
    assert world.job(job_id).status == Status.RUNNING
    world.clock.now += LIMIT_S / 2
    check_timed_out(world, job_id)


def test_a_job_without_the_limit_has_no_time_at_which_it_fails(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(training={"epochs": 4000})
    assert client.get(f"{JOBS}/{job_id}").json()["times_out_at"] is None
    world.clock.now += 10**9
    world.turn()
    assert not world.has_ended(job_id)


def test_the_message_names_the_limit_that_was_reached_first(world: World) -> None:
    limits = {"training_seconds": 10, "total_seconds": LIMIT_S}
    job_id = world.submit(training={"epochs": 4000}, limits=limits)
    world.train(job_id)
    world.turn(4)
    world.clock.now += 10
    world.reach(job_id, Status.STOPPING)
    world.runtime.stuck.add(job_id)
    world.clock.now += LIMIT_S + world.settings.cancel_grace_s
    ended = world.finish(job_id)
    assert ended.message.startswith("it trained for 10 s, the limit of its spec")


def test_a_job_that_is_being_stopped_for_its_limit_cannot_be_paused(world: World) -> None:
    job_id = world.submit(**TOTAL)
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    world.clock.now += LIMIT_S
    world.reach(job_id, Status.STOPPING)
    with pytest.raises(Conflict, match=r"limits\.total_seconds.*clone it with a higher limit"):
        world.pause(job_id)


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_job_has_its_time_however_the_clock_jumps(world: World, jump_s: float) -> None:
    job_id = world.submit(**TOTAL)
    world.train(job_id)
    world.clock.jump(jump_s)
    world.turn(8)
    assert world.job(job_id).status == Status.RUNNING
    world.clock.now += LIMIT_S
    world.turn()
    assert world.job(job_id).status == Status.STOPPING


def test_a_job_does_not_outlive_its_limit_though_the_clock_was_set_back(world: World) -> None:
    job_id = world.submit(**TOTAL)
    world.train(job_id)
    world.clock.jump(-3600.0)
    world.kill_scheduler()
    world.turn_until(world.scheduler.run_once)
    world.clock.now += LIMIT_S
    check_timed_out(world, job_id)
