"""Jobs that need more nodes than the cluster has, with an autoscaler that adds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.capacity.autoscaling import AWAIT_NODES_S
from accordion_service.domain.capacity.requests import NodeType
from accordion_service.domain.capacity.resources import Resources
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.scheduler.autoscaling import JUDGE_S
from accordion_service.store.tables.models import QuotaRow
from accordion_service.store.writes.autoscaling import AutoscalerRows
from tests.api.test_quotas import queue
from tests.api.test_service_metrics import scrape_of, store_counts
from tests.api.world import World

LONG = {"training": {"epochs": 400}}
PAIR = {**LONG, "workers": {"min": 2, "max": 2, "cpus": 4}}
"""It needs two nodes of the size of the only one."""
LARGE = {**LONG, "workers": {"min": 1, "max": 1, "cpus": 8}}
NODE = Resources(cpus=4.0, gpus=0.0)
MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path, database_url: str) -> Iterator[MakeWorld]:
    """Makes services over one database, each with an autoscaler."""
    worlds: list[World] = []

    def make(**settings: Any) -> World:
        worlds.append(World(tmp_path, database_url=database_url, **settings))
        worlds[-1].runtime.has_autoscaler = True
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def scaling(world: World) -> World:
    """A service whose cluster has an autoscaler, and one node of four CPUs."""
    world.runtime.has_autoscaler = True
    return world


def wait_for_nodes(world: World, job_id: str) -> None:
    """Turn until the autoscaler adds nodes for a job."""
    world.turn_until(lambda: world.job(job_id).reason == Reason.WAITING_FOR_ROOM)


def test_a_job_requests_the_nodes_that_it_lacks_and_starts_when_they_join(
    scaling: World, client: TestClient
) -> None:
    job = scaling.submit(**PAIR)
    wait_for_nodes(scaling, job)
    assert scaling.runtime.capacity_requests[-1] == (NODE, NODE)
    scaling.clock.now += 40
    entry = queue(client)[job]
    group = "2 workers of 4 CPU each"
    assert entry["message"] == f"needs {group}; it starts when the autoscaler has added nodes"
    said = re.fullmatch(rf"nodes for {group} were requested (\d+) s ago", entry["autoscaler"])
    assert said is not None
    assert 40 <= int(said[1]) < 60
    assert entry["requested_at"].startswith("2027-01-15T")
    scaling.runtime.cpus.append(4.0)
    scaling.runtime.placed[job] = ("node-0", "node-1")
    scaling.train(job, workers=2)
    scaling.turn(3)
    assert scaling.runtime.capacity_requests[-1] == ()


def test_nothing_is_requested_without_an_autoscaler(world: World, client: TestClient) -> None:
    job = world.submit(**PAIR)
    world.turn(5)
    assert world.runtime.capacity_requests == []
    entry = queue(client)[job]
    assert (entry["reason"], entry["requested_at"], entry["autoscaler"]) == ("NEVER_FITS", None, "")


def test_nothing_is_requested_while_no_job_waits(world: World) -> None:
    running = world.submit(**LONG, workers={"min": 1, "max": 1})
    world.runtime.placed[running] = ("node-0",)
    world.train(running)
    world.runtime.add_autoscaler()
    world.kill_scheduler()
    world.turn(5)
    assert world.runtime.capacity_requests == []


def test_the_first_request_to_version_2_has_only_what_is_used(world: World) -> None:
    running = world.submit(**LONG, workers={"min": 1, "max": 1})
    world.runtime.placed[running] = ("node-0",)
    world.train(running)
    world.submit(**PAIR)
    world.runtime.add_autoscaler()
    world.kill_scheduler()
    world.turn(5)
    requests = [[part.cpus for part in one] for one in world.runtime.capacity_requests]
    assert requests == [[1.0, 4.0, 4.0]]


def test_a_new_scheduler_repeats_the_request_of_the_one_before(scaling: World) -> None:
    wait_for_nodes(scaling, scaling.submit(**PAIR))
    assert scaling.runtime.capacity_requests == [(NODE, NODE)]
    scaling.kill_scheduler()
    scaling.turn(3)
    assert scaling.runtime.capacity_requests == [(NODE, NODE)] * 2


def test_a_new_scheduler_clears_the_request_of_the_one_before(scaling: World) -> None:
    job = scaling.submit(**PAIR)
    wait_for_nodes(scaling, job)
    scaling.kill_scheduler()
    scaling.cancel(job)
    scaling.turn(5)
    assert scaling.runtime.capacity_requests == [(NODE, NODE), ()]


def test_a_scheduler_that_ends_clears_its_request_once(scaling: World) -> None:
    job = scaling.submit(**PAIR)
    wait_for_nodes(scaling, job)
    scaling.scheduler.release()
    assert scaling.runtime.capacity_requests == [(NODE, NODE), ()]
    scaling.kill_scheduler()
    scaling.cancel(job)
    scaling.turn(5)
    assert scaling.runtime.capacity_requests == [(NODE, NODE), ()]


def test_a_scheduler_that_was_replaced_leaves_the_request_of_its_successor(scaling: World) -> None:
    wait_for_nodes(scaling, scaling.submit(**PAIR))
    before = scaling.scheduler
    scaling.kill_scheduler()
    scaling.turn(3)
    before.release()
    assert scaling.runtime.capacity_requests[-1] == (NODE, NODE)


def test_a_job_still_awaits_its_nodes_when_the_scheduler_restarts(scaling: World) -> None:
    scaling.runtime.cpus = [2.0]
    elastic = scaling.submit(**LONG, workers={"min": 1, "max": 4})
    scaling.runtime.placed[elastic] = ("node-0", "node-0")
    scaling.train(elastic, workers=2)
    pair = scaling.submit(**PAIR)
    wait_for_nodes(scaling, pair)
    since = AutoscalerRows(scaling.database).read().awaited_since
    scaling.runtime.serves = lambda _: None
    scaling.kill_scheduler()
    scaling.runtime.cpus.append(4.0)
    for _ in range(20):
        scaling.turn()
        assert scaling.job(pair).reason == Reason.WAITING_FOR_ROOM
    assert scaling.job(elastic).world_size == 2
    assert AutoscalerRows(scaling.database).read().awaited_since == since


def test_the_time_for_which_a_job_awaits_nodes_is_granted_once(scaling: World) -> None:
    large = scaling.submit(**LARGE)
    wait_for_nodes(scaling, large)
    scaling.runtime.serves = lambda bundles: not bundles
    scaling.turn_until(lambda: scaling.job(large).reason == Reason.NEVER_FITS)
    scaling.runtime.serves = lambda _: True
    scaling.clock.now += AWAIT_NODES_S
    scaling.turn(20)
    assert scaling.job(large).reason == Reason.NEVER_FITS


def test_a_request_is_judged_although_the_queue_changes_every_turn(scaling: World) -> None:
    last: list[object] = []

    def serve(bundles: object) -> bool | None:
        last.append(bundles)
        return True if last[-8:] == [bundles] * 8 else None

    scaling.runtime.serves = serve
    pair = scaling.submit(**PAIR)
    for _ in range(40):
        scaling.submit(**PAIR)
        scaling.turn()
    assert scaling.job(pair).reason == Reason.WAITING_FOR_ROOM


def test_a_request_that_is_never_judged_is_replaced_after_a_while(scaling: World) -> None:
    scaling.runtime.serves = lambda _: None
    scaling.submit(**PAIR)
    scaling.turn(4)
    scaling.submit(**LARGE)
    scaling.turn(8)
    assert scaling.runtime.capacity_requests == [(NODE, NODE)]
    scaling.clock.now += JUDGE_S
    scaling.turn(2)
    assert len(scaling.runtime.capacity_requests[-1]) == 3


def test_a_job_that_waits_for_its_quota_requests_nothing(scaling: World) -> None:
    with scaling.database.write() as session:
        session.add(QuotaRow(account="label team:slow", jobs=0, changed_at=scaling.clock()))
    job = scaling.submit(**PAIR, labels={"team": "slow"})
    scaling.turn(5)
    assert scaling.runtime.capacity_requests == []
    with scaling.database.write() as session:
        session.get_one(QuotaRow, "label team:slow").jobs = 1
    wait_for_nodes(scaling, job)


def test_a_job_whose_time_has_not_come_requests_nothing(scaling: World) -> None:
    start = "2099-01-01T00:00:00Z"
    assert scaling.job(scaling.submit(**PAIR, start_at=start)).reason == Reason.SCHEDULED
    scaling.turn(5)
    assert scaling.runtime.capacity_requests == []


def test_a_job_that_the_autoscaler_cannot_serve_is_named_and_others_are_served(
    scaling: World, client: TestClient
) -> None:
    scaling.runtime.serves = lambda bundles: all(part.cpus <= 4 for part in bundles)
    large, pair = scaling.submit(**LARGE), scaling.submit(**PAIR)
    wait_for_nodes(scaling, pair)
    assert scaling.job(large).reason == Reason.NEVER_FITS
    assert queue(client)[large]["autoscaler"] == (
        "the autoscaler cannot add nodes for 1 worker of 8 CPU: no node type is large enough, or"
        " its limit is reached"
    )
    assert scaling.runtime.capacity_requests[-1] == (NODE, NODE)


def test_a_job_that_was_infeasible_beside_another_is_tried_again_after_it(
    scaling: World,
) -> None:
    running = scaling.submit(**LONG, workers={"min": 1, "max": 1})
    scaling.runtime.placed[running] = ("node-0",)
    scaling.train(running)
    scaling.runtime.serves = lambda bundles: sum(part.cpus for part in bundles) <= 8
    pair = scaling.submit(**PAIR)
    rows = AutoscalerRows(scaling.database)
    scaling.turn_until(lambda: pair in rows.read().obstacles)
    scaling.cancel(running)
    wait_for_nodes(scaling, pair)


def test_a_job_that_fits_no_node_type_is_named(scaling: World, client: TestClient) -> None:
    scaling.runtime.node_types = (NodeType(name="small", resources=NODE),)
    large, pair = scaling.submit(**LARGE), scaling.submit(**PAIR)
    wait_for_nodes(scaling, pair)
    why = "no node type of the autoscaler has 8 CPUs; largest: small with 4"
    assert queue(client)[large]["autoscaler"] == why


@pytest.mark.parametrize("reports_feasibility", [True, False])
def test_a_running_job_does_not_grow_into_nodes_that_a_job_awaits(
    scaling: World, reports_feasibility: bool
) -> None:
    scaling.runtime.reports_feasibility = reports_feasibility
    scaling.runtime.cpus = [2.0]
    elastic = scaling.submit(**LONG, workers={"min": 1, "max": 4})
    scaling.runtime.placed[elastic] = ("node-0", "node-0")
    scaling.train(elastic, workers=2)
    scaling.submit(**PAIR)
    scaling.turn(5)
    scaling.runtime.cpus.append(4.0)
    scaling.turn(20)
    assert scaling.job(elastic).world_size == 2
    scaling.clock.now += AWAIT_NODES_S
    scaling.turn_until(lambda: scaling.job(elastic).world_size == 4)


def test_others_start_again_when_the_nodes_do_not_come_for_long(scaling: World) -> None:
    pair = scaling.submit(**PAIR)
    wait_for_nodes(scaling, pair)
    small = scaling.submit(**LONG, workers={"min": 1, "max": 1})
    scaling.turn(5)
    assert scaling.job(small).status == Status.QUEUED
    scaling.clock.now += AWAIT_NODES_S
    scaling.train(small)
    assert scaling.job(pair).reason == Reason.NEVER_FITS


def test_a_failing_autoscaler_fails_no_turn_and_is_shown_and_counted(
    scaling: World, client: TestClient
) -> None:
    scrape = scrape_of(client)
    scaling.runtime.autoscaler_problem = "the request to the autoscaler failed (TimeoutError: 10 s)"
    pair, small = scaling.submit(**PAIR), scaling.submit(**LONG, workers={"min": 1, "max": 1})
    scaling.train(small)
    assert queue(client)[pair]["autoscaler"] == scaling.runtime.autoscaler_problem
    store_counts(scaling)
    assert scrape("accordion_autoscaler_requests_total", outcome="failed") > 0
    assert scrape("accordion_scheduler_errors_total", scope="turn") == 0
    scaling.runtime.autoscaler_problem = ""
    wait_for_nodes(scaling, pair)


def test_the_parts_of_the_request_are_exported(scaling: World, client: TestClient) -> None:
    scrape = scrape_of(client)
    running = scaling.submit(**LONG, workers={"min": 1, "max": 1})
    scaling.train(running)
    wait_for_nodes(scaling, scaling.submit(**PAIR))
    scaling.turn(2)
    store_counts(scaling)
    assert scrape("accordion_autoscaler_bundles", kind="waiting") == 2
    assert scrape("accordion_autoscaler_bundles", kind="held") == 1
    assert scrape("accordion_autoscaler_requests_total", outcome="sent") >= 1
    assert scrape("accordion_autoscaler_requests_total", outcome="failed") == 0


def test_switching_it_off_clears_our_own_request_once(make_world: MakeWorld) -> None:
    first = make_world()
    wait_for_nodes(first, first.submit(**PAIR))
    second = make_world(autoscaler="off")
    second.clock.now = first.clock.now + first.settings.lease_s
    second.turn(5)
    assert second.runtime.capacity_requests == [()]
    third = make_world(autoscaler="off")
    third.clock.now = second.clock.now + first.settings.lease_s
    third.turn(5)
    assert third.runtime.capacity_requests == []


def test_a_request_is_always_made_if_the_setting_says_so(make_world: MakeWorld) -> None:
    world = make_world(autoscaler="on")
    world.runtime.has_autoscaler = False
    world.submit(**PAIR)
    world.turn(3)
    assert world.runtime.capacity_requests[-1] == (NODE, NODE)


def test_a_group_above_the_limit_is_not_requested(make_world: MakeWorld) -> None:
    world = make_world(autoscaler_max_workers=1)
    job = world.submit(**PAIR)
    world.turn(3)
    assert world.runtime.capacity_requests == []
    why = AutoscalerRows(world.database).read().obstacles[job]
    assert why.endswith("2 workers are more than ACCORDION_AUTOSCALER_MAX_WORKERS, which is 1")
