"""What the scheduler requests of the cluster's autoscaler while jobs wait."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fastapi.testclient import TestClient

from service.autoscaling import REPEAT_S
from service.domain.jobs import Status
from service.domain.resources import Resources
from tests.api.world import World

ONE = Resources(cpus=1.0, gpus=0.0)
TOO_MANY = {"min": 4, "max": 4, "cpus": 2}
"""Twice what the cluster has."""


def test_a_job_that_never_fits_requests_the_fewest_workers_that_it_needs(world: World) -> None:
    needs = {"cpus": 2, "node_labels": {"zone": "b"}, "resources": {"fpga": 1}}
    job = world.submit(workers={"min": 3, "max": 4, **needs})
    world.turn(2)
    assert world.job(job).reason == "NEVER_FITS"
    worker = Resources(
        cpus=2.0, gpus=0.0, custom=(("fpga", 1.0),), labels=frozenset({("zone", "b")})
    )
    assert world.runtime.requested == [[worker] * 3]


def test_the_workers_of_running_jobs_are_part_of_a_request(world: World) -> None:
    running = world.submit(workers={"min": 2, "max": 2}, training={"epochs": 1000})
    world.train(running)
    assert world.runtime.requested == []
    world.submit(workers={"min": 3, "max": 3})
    world.turn(2)
    assert world.runtime.requested == [[ONE] * 5]


def test_a_request_ends_with_the_last_job_that_waits(world: World) -> None:
    job = world.submit(workers=TOO_MANY)
    world.turn(2)
    world.cancel(job)
    world.reach(job, Status.CANCELLED)
    world.turn(2)
    assert [len(request) for request in world.runtime.requested] == [4, 0]


def test_a_request_is_repeated_for_a_cluster_that_was_restarted(world: World) -> None:
    world.submit(workers=TOO_MANY)
    world.turn(4)
    assert len(world.runtime.requested) == 1
    world.clock.now += REPEAT_S
    world.turn(2)
    assert Counter(map(len, world.runtime.requested)) == {4: 2}


def test_a_job_that_waits_for_a_quota_requests_nothing(world: World, client: TestClient) -> None:
    client.put("/api/v1/quotas", json={"label": "team:a", "jobs": 1}).raise_for_status()
    first = world.submit(
        training={"epochs": 1000}, labels={"team": "a"}, workers={"min": 1, "max": 1}
    )
    world.train(first)
    second = world.submit(labels={"team": "a"})
    world.turn(2)
    assert world.job(second).reason == "WAITING_FOR_QUOTA"
    assert world.runtime.requested == []


def test_nothing_is_requested_if_the_setting_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, request_nodes=False)
    world.submit(workers=TOO_MANY)
    world.turn(2)
    world.close()
    assert world.runtime.requested == []


def test_a_cluster_that_is_away_gets_the_request_when_it_is_back(world: World) -> None:
    world.submit(workers=TOO_MANY)
    world.runtime.down = True
    world.turn(2)
    assert world.runtime.requested == []
    world.runtime.down = False
    world.turn(2)
    assert [len(request) for request in world.runtime.requested] == [4]
