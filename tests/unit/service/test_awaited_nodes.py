"""Jobs for which the autoscaler adds nodes: others leave them the capacity that comes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accordion_service.domain.capacity.allocation import plan_allocations
from accordion_service.domain.capacity.queue import PendingJob, QueueRules, plan_queue
from accordion_service.domain.capacity.resources import Resources
from accordion_service.domain.capacity.wait_causes import explain_queue
from accordion_service.domain.jobs.statuses import Reason
from tests.unit.service.test_backfill import running_job
from tests.unit.service.test_queue import asked

NODES = [Resources(cpus=4, gpus=0, node="a")]
LARGE = PendingJob(id="large", request=asked(2, 2, cpus=4.0))
SMALL = PendingJob(id="small", request=asked(1, 1, cpus=2.0))
AWAITED = QueueRules(awaiting_nodes=frozenset({"large"}))


def test_a_job_that_awaits_nodes_waits_for_room_and_its_message_says_for_what() -> None:
    admission = plan_queue([LARGE], NODES, [], rules=AWAITED)["large"]
    assert admission.reason is Reason.WAITING_FOR_ROOM
    assert admission.message == (
        "needs 2 workers of 4 CPU each; it starts when the autoscaler has added nodes"
    )


def test_no_job_overtakes_one_that_awaits_nodes_on_capacity_that_it_needs() -> None:
    assert plan_queue([LARGE, SMALL], NODES, [])["small"].reason is Reason.ADMITTED
    held_back = plan_queue([LARGE, SMALL], NODES, [], rules=AWAITED)
    assert held_back["small"].reason is Reason.WAITING_FOR_ROOM


def test_a_job_starts_beside_one_that_awaits_nodes_where_that_cannot_run() -> None:
    narrow = [Resources(cpus=2, gpus=0, node="narrow"), *NODES]
    busy = running_job("busy", "a", cpus=4)
    admissions = plan_queue([LARGE, SMALL], narrow, [busy], rules=AWAITED)
    assert admissions["small"].reason is Reason.ADMITTED


def test_a_running_job_does_not_grow_into_nodes_that_another_one_awaits() -> None:
    running = replace(running_job("r", "a", cpus=1), request=asked(1, 4))
    grown = plan_allocations([running], [LARGE], NODES)
    assert {job_id: change.workers for job_id, change in grown.items()} == {"r": 4}
    assert plan_allocations([running], [LARGE], NODES, rules=AWAITED) == {}


def test_a_running_job_grows_where_a_job_that_awaits_nodes_cannot_run() -> None:
    nodes = [Resources(cpus=2, gpus=0, node="narrow"), *NODES]
    running = replace(running_job("r", "narrow", cpus=1), request=asked(1, 4))
    jobs = [running_job("busy", "a", cpus=4), running]
    grown = plan_allocations(jobs, [LARGE], nodes, rules=AWAITED)
    assert {job_id: change.workers for job_id, change in grown.items()} == {"r": 2}


@pytest.mark.parametrize(("cpus", "left"), [(2.0, {"r": 1}), (4.0, {})])
def test_a_later_job_takes_workers_only_where_one_that_awaits_nodes_cannot_run(
    cpus: float, left: dict[str, int]
) -> None:
    nodes = [Resources(cpus=cpus, gpus=0, node="a")]
    running = replace(running_job("r", "a", cpus=1), request=asked(1, 4), allocated_workers=2)
    running = replace(running, placed=("a", "a"))
    urgent = PendingJob(id="urgent", request=asked(1, 1, cpus=cpus - 1), priority=5)
    changes = plan_allocations([running], [LARGE, urgent], nodes, rules=AWAITED)
    assert {job_id: change.workers for job_id, change in changes.items()} == left


def test_a_job_behind_one_that_awaits_nodes_waits_for_it() -> None:
    causes = explain_queue([LARGE, SMALL], NODES, [], rules=AWAITED, max_priority=100)
    assert causes["small"].waits_for == ("large",)
    assert causes["large"].waits_for == ()
