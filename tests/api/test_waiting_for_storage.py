"""A training job whose workers wait for the storage of their checkpoints."""

from __future__ import annotations

import pytest

from accordion_service.domain.jobs.statuses import Reason, Status
from tests.api.world import World


@pytest.mark.parametrize("trains_at_once", [True, False])
def test_a_job_that_waits_for_its_storage_says_so_until_it_trains_again(
    world: World, trains_at_once: bool
) -> None:
    job_id = world.submit()
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    fake, trains = world.runtime.jobs[job_id], world.job(job_id).message
    fake.phase, fake.says = "waiting", "the storage is away"
    world.turn_until(lambda: world.job(job_id).reason == Reason.WAITING_FOR_STORAGE)
    job = world.job(job_id)
    assert (job.status, job.message) == (Status.RUNNING, "the storage is away")
    fake.phase, fake.says = "running", "worker group 1 continues: its storage is available again"
    if trains_at_once:
        world.runtime.stuck.discard(job_id)
    world.turn_until(lambda: world.job(job_id).reason == Reason.TRAINING)
    assert world.job(job_id).message == trains
    told = [event.data["message"] for event in world.events(job_id, "status")]
    assert told.count("the storage is away") == 1


def test_a_job_that_starts_without_its_storage_has_that_reason_until_it_is_there(
    world: World,
) -> None:
    job_id = world.submit()
    world.reach(job_id, Status.STARTING)
    world.runtime.stuck.add(job_id)
    fake = world.runtime.jobs[job_id]
    fake.phase, fake.says = "waiting", "the storage is away"
    world.turn_until(lambda: world.job(job_id).reason == Reason.WAITING_FOR_STORAGE)
    assert (world.job(job_id).status, world.job(job_id).message) == ("STARTING", fake.says)
    version = world.job(job_id).version
    world.turn(20)
    assert world.job(job_id).version == version, "the same reason is not stored again"
    fake.phase, fake.says = "starting", "worker processes start"
    world.turn_until(lambda: world.job(job_id).message == fake.says)
    assert (world.job(job_id).status, world.job(job_id).reason) == ("STARTING", Reason.ADMITTED)
    world.runtime.stuck.discard(job_id)
    world.train(job_id)
    assert world.job(job_id).reason == Reason.TRAINING


def test_a_job_whose_workers_ended_as_its_storage_is_full_has_none_until_it_recovers(
    world: World,
) -> None:
    job_id = world.submit()
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    fake = world.runtime.jobs[job_id]
    fake.phase, fake.says, world.runtime.placed[job_id] = "waiting", "no space left", ()
    world.turn_until(lambda: world.job(job_id).reason == Reason.WAITING_FOR_STORAGE)
    job = world.job(job_id)
    assert (job.status, job.message, job.world_size) == (Status.RUNNING, "no space left", 0)
    fake.phase, fake.says = "running", "0 of 2 worker processes ready"
    world.turn(20)
    assert world.job(job_id).reason == Reason.WAITING_FOR_STORAGE, "no worker trains yet"
    world.runtime.stuck.discard(job_id)
    del world.runtime.placed[job_id]
    world.runtime.break_group(job_id)
    world.turn_until(lambda: world.job(job_id).reason == Reason.TRAINING)
    assert (world.job(job_id).status, world.job(job_id).world_size) == (Status.RUNNING, 2)
