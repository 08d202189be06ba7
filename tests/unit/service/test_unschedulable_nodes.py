"""What the queue and the allocation do with nodes that take no more workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from accordion_service.domain.capacity import queue
from accordion_service.domain.capacity.allocation import find_stranded, plan_allocations
from accordion_service.domain.capacity.cluster_snapshot import (
    find_available_nodes,
    list_unschedulable,
)
from accordion_service.domain.capacity.queue import AllocatedJob, PendingJob, plan_queue
from accordion_service.domain.capacity.resources import ResourceRequest, Resources
from accordion_service.domain.capacity.wait_causes import explain_queue
from accordion_service.domain.jobs.statuses import Reason
from accordion_service.runtime.protocol import SupervisorState
from accordion_service.scheduler.allocator import ClusterState
from accordion_service.store.tables.models import JobRow
from accordion_workers.records.contract import AVOID_S
from tests.unit.service.test_queue import HELD, NODES, WAITING, jobs_of

WHY = (
    "node gpu-7 is cordoned by ada; an operator can restore it with 'accordion node restore gpu-7'"
)
OPEN = Resources(cpus=4, gpus=0, node="open")
CORDONED = Resources(cpus=4, gpus=0, node="cordoned", unschedulable=WHY)


def asked(least: int, most: int | None = None, cpus: float = 1.0) -> ResourceRequest:
    return ResourceRequest(min=least, max=most or least, cpus=cpus, gpus=0)


def holds(request: ResourceRequest, *placed: str) -> AllocatedJob:
    return AllocatedJob(id="old", request=request, allocated_workers=len(placed), placed=placed)


def test_a_job_that_needs_such_a_node_names_it_and_blocks_nobody() -> None:
    waiting = [PendingJob(id="large", request=asked(5)), PendingJob(id="small", request=asked(1))]
    admissions = plan_queue(waiting, [OPEN, CORDONED], [])
    assert admissions["large"].reason is Reason.WAITING_FOR_NODE
    assert admissions["large"].message == f"needs 5 workers of 1 CPU each; {WHY}"
    assert admissions["small"].reason is Reason.ADMITTED
    causes = explain_queue(waiting, [OPEN, CORDONED], [], max_priority=100)
    assert causes["large"].waits_for == ()
    assert causes["large"].remedies == (
        "a minimum of 4 workers: it then fits the cluster",
        "node cordoned taking workers again",
    )


def test_a_job_that_no_node_could_hold_is_told_so() -> None:
    admission = plan_queue([PendingJob(id="a", request=asked(9))], [OPEN, CORDONED], [])["a"]
    assert admission.reason is Reason.NEVER_FITS
    assert "holds at most 8" in admission.message


def test_a_job_starts_with_the_workers_that_fit_elsewhere() -> None:
    admission = plan_queue([PendingJob(id="a", request=asked(1, 8))], [OPEN, CORDONED], [])["a"]
    assert (admission.reason, admission.workers) == (Reason.ADMITTED, 4)


def test_a_job_that_waits_for_others_names_a_node_that_has_room() -> None:
    held = holds(asked(3), "open", "open", "open")
    waiting = [PendingJob(id="a", request=asked(2))]
    admission = plan_queue(waiting, [OPEN, CORDONED], [held])["a"]
    assert admission.reason is Reason.WAITING_FOR_ROOM
    assert "it starts when one of them ends" in admission.message
    assert admission.message.endswith(f"; {WHY}")
    full = replace(CORDONED, cpus=0)
    assert WHY not in plan_queue(waiting, [OPEN, full], [held])["a"].message


def test_many_such_nodes_are_counted() -> None:
    nodes = [
        replace(CORDONED, node=str(n), unschedulable=f"node {n} is cordoned")
        for n in range(4, -1, -1)
    ]
    message = plan_queue([PendingJob(id="a", request=asked(1))], nodes, [])["a"].message
    assert message.endswith(
        "node 0 is cordoned; node 1 is cordoned; 3 more: 'accordion nodes' lists them"
    )


def test_jobs_of_one_size_that_wait_for_such_nodes_are_explained_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    explained = []
    explain = queue.describe_unschedulable
    monkeypatch.setattr(
        queue, "describe_unschedulable", lambda *given: (explained.append(1), explain(*given))[1]
    )
    waiting = [PendingJob(id=str(n), request=asked(5)) for n in range(40)]
    assert len(plan_queue(waiting, [OPEN, CORDONED], [])) == 40
    assert len(explained) == 1


def test_workers_on_such_a_node_stay_and_their_job_does_not_grow_there() -> None:
    job = holds(asked(1, 8), "cordoned", "cordoned")
    assert plan_allocations([job], [], [CORDONED]) == {}
    assert plan_allocations([job], [], [CORDONED, replace(OPEN, cpus=3)])["old"].workers == 5


def test_a_lost_worker_of_such_a_node_is_replaced_elsewhere_or_not_at_all() -> None:
    job = replace(holds(asked(1, 2), "cordoned"), allocated_workers=2)
    assert plan_allocations([job], [], [CORDONED, OPEN]) == {}
    assert plan_allocations([job], [], [CORDONED])["old"].workers == 1


def test_running_workers_of_unknown_place_stay_on_such_a_node() -> None:
    job = replace(holds(asked(1, 8)), allocated_workers=6, placed=None)
    assert plan_allocations([job], [], [OPEN, CORDONED]) == {}
    assert plan_allocations([replace(job, starting=True)], [], [OPEN, CORDONED])["old"].workers == 4


def test_the_last_known_place_of_workers_holds_while_the_supervisor_is_silent() -> None:
    cluster, row = ClusterState(), JobRow(id="a", attempt=2)
    known = SupervisorState(job_id="a", attempt=2, phase="running", placed=("cordoned",))
    cluster.update_supervisors([known], 0.0)
    for found in ([replace(known, phase="starting", placed=None)], []):
        cluster.update_supervisors(found, 1.0)
        assert cluster.placed_nodes(row) == ("cordoned",)
    assert cluster.placed_nodes(JobRow(id="a", attempt=3)) is None
    cluster.update_supervisors([replace(known, placed=())], 2.0)
    assert cluster.placed_nodes(row) == ()


def test_a_job_that_fits_nowhere_does_not_keep_others_from_growing() -> None:
    broken = replace(holds(asked(3), "open"), id="broken", allocated_workers=3, recovering=True)
    small = holds(asked(1, 2), "open")
    nodes = [replace(OPEN, cpus=3), CORDONED]
    plan = plan_allocations([broken, small], [], nodes)
    assert {name: one.workers for name, one in plan.items()} == {"old": 2}
    grown = replace(small, allocated_workers=2, placed=("open", "open"))
    assert plan_allocations([broken, grown], [], nodes) == {}, "a plan is stable"
    assert plan_allocations([broken, grown], [], [replace(OPEN, cpus=4)])["old"].workers == 1


def test_a_job_is_stranded_if_only_such_a_node_has_room_for_its_minimum() -> None:
    broken = replace(holds(asked(3), "open"), allocated_workers=3, recovering=True)
    assert find_stranded([broken], [replace(OPEN, cpus=2), CORDONED]) == {"old"}
    assert find_stranded([broken], [replace(OPEN, cpus=2)]) == set(), "no such node would help"
    assert find_stranded([broken], [OPEN, CORDONED]) == set()
    assert find_stranded([replace(broken, recovering=False)], [CORDONED]) == set()


def test_a_job_grows_past_one_that_needs_such_a_node() -> None:
    job = holds(asked(1, 4), "open")
    waiting = [PendingJob(id="large", request=asked(5))]
    assert plan_allocations([job], waiting, [OPEN, CORDONED])["old"].workers == 4


@given(WAITING, NODES, HELD)
def test_a_cordoned_node_admits_as_much_as_a_missing_one_when_it_is_empty(
    waiting: list[PendingJob], nodes: list[Resources], held: list[Resources]
) -> None:
    cordoned = replace(CORDONED, cpus=64, gpus=64)
    with_it = plan_queue(waiting, [*nodes, cordoned], jobs_of(held))
    without = plan_queue(waiting, nodes, jobs_of(held))
    assert {name: one.workers for name, one in with_it.items()} == {
        name: one.workers for name, one in without.items()
    }


def test_a_snapshot_says_which_nodes_take_no_workers() -> None:
    plain = {"address": "10.0.0.1", "cpus": 4, "gpus": 0, "alive": True}
    old = {**plain, "id": "a"}
    cordoned = {**plain, "id": "b", "name": "gpu-7", "unschedulable": WHY}
    head = {**plain, "id": "c", "name": "head", "cpus": 0}
    dead = {**cordoned, "id": "d", "alive": False}
    leaving = {**plain, "id": "e", "name": "e", "draining": True}
    nodes = [old, cordoned, head, dead, leaving]
    assert list_unschedulable(nodes) == ("b",)
    assert find_available_nodes(nodes) == {"10.0.0.1": False, "gpu-7": False}


BLIND = Resources(cpus=4, gpus=0, node="blind", name="gpu-8")
AVOIDING = replace(asked(1), avoid=frozenset({"blind"}))


def test_a_job_that_could_not_start_on_the_only_node_waits_and_blocks_nobody() -> None:
    waiting = [PendingJob(id="a", request=AVOIDING), PendingJob(id="b", request=asked(1))]
    admissions = plan_queue(waiting, [BLIND], [])
    assert admissions["a"].reason is Reason.WAITING_FOR_NODE
    assert "its workers could not start on node gpu-8" in admissions["a"].message
    assert admissions["b"].reason is Reason.ADMITTED


def test_a_job_waits_for_room_elsewhere_than_where_its_workers_could_not_start() -> None:
    held = holds(asked(4), *["open"] * 4)
    admission = plan_queue([PendingJob(id="a", request=AVOIDING)], [OPEN, BLIND], [held])["a"]
    assert admission.reason is Reason.WAITING_FOR_ROOM
    assert "its workers could not start on node gpu-8" in admission.message


def test_a_job_without_a_group_is_stranded_where_its_workers_cannot_start() -> None:
    broken = replace(holds(AVOIDING), allocated_workers=1, recovering=True)
    others = replace(holds(asked(4), *["open"] * 4), id="others")
    assert find_stranded([others, broken], [OPEN, BLIND]) == {"old"}
    assert find_stranded([broken], [OPEN, BLIND]) == set()


def test_a_job_does_not_grow_onto_a_node_on_which_its_workers_could_not_start() -> None:
    job = replace(holds(replace(AVOIDING, max=8), "open"))
    assert plan_allocations([job], [], [OPEN, BLIND])["old"].workers == 4


def test_nodes_that_an_attempt_avoided_are_known_after_it_for_a_while() -> None:
    cluster = ClusterState()
    found = SupervisorState(job_id="a", attempt=1, phase="running", placed=(), avoided=("blind",))
    cluster.update_supervisors([found], 0.0)
    cluster.update_supervisors([], AVOID_S - 1)
    assert cluster.list_avoided() == {"a": {"blind"}}
    cluster.update_supervisors([], AVOID_S)
    assert cluster.list_avoided() == {}


@pytest.mark.parametrize("restored_until", [5.0, 50.0])
def test_a_node_is_avoided_until_the_later_one_of_two_times(restored_until: float) -> None:
    cluster = ClusterState(avoided_until={"a": {"blind": 20.0, "own": 20.0}})
    cluster.restore_avoided({"a": ["blind", "other"]}, restored_until)
    assert cluster.avoided_until == {
        "a": {"blind": max(restored_until, 20.0), "own": 20.0, "other": restored_until}
    }


def test_what_another_scheduler_noted_replaces_an_expired_time() -> None:
    cluster = ClusterState(avoided_until={"a": {"blind": 20.0}})
    cluster.restore_avoided({"a": ["blind"]}, 50.0)
    cluster.update_supervisors([], 30.0)
    assert cluster.list_avoided() == {"a": {"blind"}}
