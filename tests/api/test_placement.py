"""Capacity is counted by real placement; an attempt that Ray cannot place costs a job nothing."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_workers.records.contract import AVOID_S, FailureRecord
from tests.api.world import DIGITS, World

SPREAD = ("node-0", "node-1")
WIDE = {"min": 1, "max": 1, "cpus": 4}


@pytest.fixture
def two_nodes(world: World) -> World:
    world.runtime.cpus = [4, 4]
    return world


def submit_spread(world: World, **changes: Any) -> str:
    """A job whose two workers Ray puts on two nodes."""
    job_id = world.submit(workers={"min": 2, "max": 2, "cpus": 2}, **changes)
    world.runtime.placed[job_id] = SPREAD
    return job_id


def test_job_waits_for_the_room_that_real_placement_leaves(two_nodes: World) -> None:
    two_nodes.train(submit_spread(two_nodes, training={"epochs": 300}))
    wide = two_nodes.submit(workers=WIDE)
    two_nodes.turn(10)
    assert (two_nodes.job(wide).attempt, two_nodes.job(wide).reason) == (0, Reason.WAITING_FOR_ROOM)


def test_job_admitted_in_error_goes_back_to_the_queue_and_trains_later(two_nodes: World) -> None:
    first, wide = submit_spread(two_nodes, training={"epochs": 100}), two_nodes.submit(workers=WIDE)
    two_nodes.runtime.stuck, two_nodes.runtime.placed[wide] = {wide}, ()
    two_nodes.turn_until(lambda: two_nodes.job(wide).status == Status.STARTING)
    row = two_nodes.reach(wide, Status.QUEUED)
    assert (row.reason, row.lost_attempts, row.workers) == (Reason.WAITING_FOR_ROOM, 0, 0)
    assert two_nodes.history.attempts(wide)[0].reason == Reason.NOT_PLACED
    two_nodes.finish(first)
    two_nodes.runtime.stuck, two_nodes.runtime.placed[wide] = set(), ("node-0",)
    assert two_nodes.finish(wide).status == Status.SUCCEEDED


def test_job_that_is_never_placed_never_fails(world: World) -> None:
    job_id = world.submit()
    world.runtime.stuck, world.runtime.placed[job_id] = {job_id}, ()
    for _ in range(2 * world.settings.max_lost_attempts):
        world.reach(job_id, Status.STARTING)
        world.clock.now += world.settings.start_timeout_s
        world.turn()
    assert world.job(job_id).lost_attempts == 0


def test_job_that_trains_gives_no_worker_to_one_admitted_in_error(two_nodes: World) -> None:
    first = two_nodes.submit(workers={"min": 1, "max": 2, "cpus": 2}, training={"epochs": 300})
    wide = two_nodes.submit(workers=WIDE)
    two_nodes.runtime.placed |= {first: SPREAD, wide: ()}
    two_nodes.runtime.stuck = {wide}
    two_nodes.turn(40)
    assert [
        event.data["new"]
        for event in two_nodes.events(first, "workers")
        if event.data["what"] == "granted"
    ] == []


def test_a_start_whose_processes_load_for_long_is_left_alone(world: World) -> None:
    world.runtime.slow_start = 20
    job_id = world.submit()
    world.runtime.placed[job_id] = ("node-0",)
    world.turn_until(lambda: world.job(job_id).status == Status.STARTING)
    for _ in range(5):
        world.clock.now += world.settings.start_timeout_s
        world.turn()
    assert world.finish(job_id).attempt == 1


def test_job_waits_for_capacity_that_other_programs_use_and_says_so(
    client: TestClient, world: World
) -> None:
    world.runtime.foreign_cpus = {0: 2.0}
    job_id = world.submit(workers=WIDE)
    world.turn(10)
    job = world.job(job_id)
    assert (job.attempt, job.reason) == (0, Reason.WAITING_FOR_ROOM)
    assert "other programs use 2 of the cluster's 4 CPUs" in job.message
    assert client.get("/api/v1/cluster").json()["cpus_foreign"] == 2.0
    dry_run = client.post(
        "/api/v1/jobs?dry_run=true", json={**DIGITS, "workers": WIDE, "priority": 100}
    ).json()
    assert "other programs use 2" in dry_run["message"]
    world.runtime.foreign_cpus = {}
    assert world.finish(job_id).status == Status.SUCCEEDED


def test_job_that_fits_beside_other_programs_starts_at_once(world: World) -> None:
    world.runtime.foreign_cpus = {0: 2.0}
    job_id = world.submit(workers={"min": 1, "max": 4, "cpus": 1}, training={"epochs": 300})
    world.train(job_id)
    world.turn(40)
    assert world.job(job_id).workers == 2


def test_capacity_that_ray_still_counts_after_a_job_ended_is_no_other_programs(
    world: World,
) -> None:
    first, second = world.submit(workers=WIDE), world.submit(workers=WIDE)
    world.runtime.lag_s = 2.0
    world.runtime.placed |= {first: ("node-0",), second: ("node-0",)}
    world.finish(first)
    world.finish(second)
    assert not any(
        "other programs" in event.data["message"] for event in world.events(second, "status")
    )


def test_job_that_is_not_placed_because_of_other_programs_is_not_admitted_again(
    two_nodes: World,
) -> None:
    wide = two_nodes.submit(workers=WIDE)
    two_nodes.turn_until(lambda: two_nodes.job(wide).status == Status.STARTING)
    two_nodes.runtime.stuck, two_nodes.runtime.placed[wide] = {wide}, ()
    two_nodes.runtime.foreign_cpus = {0: 1.0, 1: 1.0}
    two_nodes.clock.now += two_nodes.settings.start_timeout_s
    two_nodes.reach(wide, Status.QUEUED)
    two_nodes.turn(40)
    job = two_nodes.job(wide)
    assert (job.attempt, job.lost_attempts) == (1, 0)
    assert "other programs use 2 of the cluster's 8 CPUs" in job.message


def requeue_without_node(two_nodes: World) -> tuple[str, str]:
    """Return a job that holds node 0, and one whose workers could not start on node 1."""
    first = two_nodes.submit(workers=WIDE, training={"epochs": 4000})
    two_nodes.runtime.placed[first] = ("node-0",)
    two_nodes.train(first)
    job_id = two_nodes.submit(workers=WIDE)
    runtime = two_nodes.runtime
    runtime.stuck, runtime.placed[job_id], runtime.avoided[job_id] = {job_id}, (), ("node-1",)
    two_nodes.turn_until(lambda: two_nodes.job(job_id).status == Status.STARTING)
    lacks = "a worker process on node 10.0.0.2 cannot take part"
    runtime.report(
        job_id, FailureRecord(cause="infrastructure", rank=None, message=lacks, is_storage=True)
    )
    two_nodes.reach(job_id, Status.RECOVERING)
    two_nodes.reach(job_id, Status.QUEUED)
    return first, job_id


def test_a_job_is_not_admitted_for_a_node_on_which_its_workers_could_not_start(
    client: TestClient, two_nodes: World
) -> None:
    runtime, (first, job_id) = two_nodes.runtime, requeue_without_node(two_nodes)
    two_nodes.turn(40)
    job = two_nodes.job(job_id)
    assert (job.attempt, job.reason, job.failures) == (1, Reason.WAITING_FOR_ROOM, 0)
    assert "its workers could not start on node 10.0.0.2" in job.message
    [entry] = client.get("/api/v1/queue").json()["items"]
    assert entry["waits_for"] == [first]
    runtime.avoided, runtime.stuck, runtime.placed[job_id] = {}, set(), ("node-1",)
    two_nodes.clock.now += AVOID_S
    two_nodes.train(job_id)


def test_a_new_scheduler_knows_on_which_node_the_workers_of_a_job_could_not_start(
    two_nodes: World,
) -> None:
    _, job_id = requeue_without_node(two_nodes)
    two_nodes.runtime.avoided = {}
    two_nodes.kill_scheduler()
    two_nodes.turn(40)
    job = two_nodes.job(job_id)
    assert (job.attempt, job.reason) == (1, Reason.WAITING_FOR_ROOM)
    two_nodes.runtime.stuck, two_nodes.runtime.placed[job_id] = set(), ("node-1",)
    two_nodes.clock.now += AVOID_S
    two_nodes.train(job_id)
