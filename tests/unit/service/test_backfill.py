"""Jobs that start beside one that waits ahead of them: they never delay it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement

from hypothesis import given
from hypothesis import strategies as st

from accordion_service.domain.capacity.allocation import plan_allocations
from accordion_service.domain.capacity.backfill import Backfill
from accordion_service.domain.capacity.bin_packing import Packing, fits_beside, num_unplaced
from accordion_service.domain.capacity.queue import AllocatedJob, PendingJob, QueueRules, plan_queue
from accordion_service.domain.capacity.resources import (
    ResourceRequest,
    Resources,
    list_worker_resources,
    worker_resources,
)
from accordion_service.domain.jobs.statuses import Reason
from tests.unit.service.test_queue import ASKED, CUSTOM, LABELS, asked

MAY_PAUSE = QueueRules(may_pause=True)
NAMED_NODES = st.lists(
    st.builds(
        Resources,
        cpus=st.sampled_from([2.0, 4.0, 8.0]),
        gpus=st.sampled_from([0.0, 1.0, 4.0]),
        custom=CUSTOM,
        labels=LABELS,
    ),
    min_size=1,
    max_size=3,
).map(lambda nodes: [replace(node, node=f"n{number}") for number, node in enumerate(nodes)])
RUNNING = st.lists(st.tuples(ASKED, st.integers(0, 2)), max_size=4)


def running_job(name: str, node: str, cpus: float, gpus: float = 0.0) -> AllocatedJob:
    request = asked(1, 1, cpus, gpus)
    return AllocatedJob(id=name, request=request, allocated_workers=1, placed=(node,))


def place(rows: list[tuple[ResourceRequest, int]], nodes: list[Resources]) -> list[AllocatedJob]:
    """Jobs with one worker each, as many as the nodes hold."""
    jobs: list[AllocatedJob] = []
    for number, (request, index) in enumerate(rows):
        node = nodes[index % len(nodes)].node
        one = replace(request, min=1, max=1)
        job = AllocatedJob(id=f"r{number}", request=one, allocated_workers=1, placed=(node,))
        free = Packing(workers_of(jobs), nodes).free[index % len(nodes)]
        jobs += [job] if free.fits(worker_resources(job.request)) else []
    return jobs


def workers_of(jobs: list[AllocatedJob]) -> list[Resources]:
    return [size for job in jobs for size in job.list_workers()]


def subsets(jobs: list[AllocatedJob]) -> list[list[AllocatedJob]]:
    return [
        [job for number, job in enumerate(jobs) if mask >> number & 1]
        for mask in range(2 ** len(jobs))
    ]


def placements(
    size: Resources, workers: int, nodes: list[Resources], present: list[Resources]
) -> list[list[Resources]]:
    """Every way in which Ray could place the workers."""
    free = Packing(present, nodes).free
    ways = combinations_with_replacement(range(len(nodes)), workers)
    return [
        [replace(size, node=nodes[index].node) for index in way]
        for way in ways
        if all(way.count(index) <= free[index].count_fitting(size) for index in way)
    ]


@given(NAMED_NODES, RUNNING, ASKED, ASKED)
def test_a_job_behind_the_head_never_delays_it_whatever_ends_and_wherever_it_runs(
    nodes: list[Resources],
    rows: list[tuple[ResourceRequest, int]],
    first: ResourceRequest,
    second: ResourceRequest,
) -> None:
    jobs, backfill = place(rows, nodes), Backfill(nodes)
    backfill.add_ahead(first)
    harmless = backfill.count_harmless(second, Packing(workers_of(jobs), nodes))
    for way in placements(worker_resources(second), harmless, nodes, workers_of(jobs)):
        for staying in subsets(jobs):
            taken = workers_of(staying)
            if fits_beside(first, nodes, taken):
                assert fits_beside(first, nodes, [*taken, *way])


@given(NAMED_NODES, RUNNING, ASKED, ASKED, ASKED)
def test_a_job_never_delays_two_jobs_ahead_that_start_together(
    nodes: list[Resources],
    rows: list[tuple[ResourceRequest, int]],
    first: ResourceRequest,
    second: ResourceRequest,
    third: ResourceRequest,
) -> None:
    node, jobs, backfill = nodes[:1], place(rows, nodes[:1]), Backfill(nodes[:1])
    backfill.add_ahead(first)
    backfill.add_ahead(second)
    present = workers_of(jobs)
    way = [replace(worker_resources(third), node="n0")] * backfill.count_harmless(
        third, Packing(present, node)
    )
    both = list_worker_resources(first, first.min) + list_worker_resources(second, second.min)
    for staying in subsets(jobs):
        taken = workers_of(staying)
        if num_unplaced([*taken, *both], node) == 0:
            assert num_unplaced([*taken, *way, *both], node) == 0


def test_a_job_that_could_be_paused_for_the_head_does_not_delay_the_second_one() -> None:
    busy = replace(running_job("busy", "n", cpus=2), priority=99)
    second = PendingJob(id="second", request=asked(3, 3), priority=4)
    admissions = plan_queue([WIDE, second, SMALL], FOUR, [busy], rules=MAY_PAUSE)
    assert [admissions[job.id].workers for job in (WIDE, second, SMALL)] == [0, 0, 0]


@given(NAMED_NODES, RUNNING, st.lists(ASKED, min_size=2, max_size=5), st.booleans())
def test_only_one_job_starts_behind_the_head_until_its_nodes_are_known(
    nodes: list[Resources],
    rows: list[tuple[ResourceRequest, int]],
    asked_for: list[ResourceRequest],
    may_pause: bool,
) -> None:
    pending = [
        PendingJob(id=str(number), request=request, priority=-number)
        for number, request in enumerate(asked_for)
    ]
    rules = QueueRules(may_pause=may_pause)
    admissions = plan_queue(pending, nodes, place(rows, nodes), rules=rules)
    reasons = [admissions[job.id].reason for job in pending]
    if Reason.WAITING_FOR_ROOM in reasons:
        behind = reasons[reasons.index(Reason.WAITING_FOR_ROOM) :]
        assert behind.count(Reason.ADMITTED) <= 1


GPU_NODE = Resources(cpus=16, gpus=4, node="gpus")


def test_a_job_starts_on_cpus_beside_one_that_waits_for_gpus() -> None:
    jobs = [running_job("r", "gpus", cpus=2, gpus=3)]
    head = PendingJob(id="head", request=asked(2, 2, cpus=2, gpus=1))
    later = PendingJob(id="later", request=asked(1, 8, cpus=2))
    admissions = plan_queue([head, later], [GPU_NODE], jobs)
    assert admissions["head"].reason is Reason.WAITING_FOR_ROOM
    assert admissions["later"].workers == 3, "8 of the 14 CPUs are for the four GPUs"


def test_a_job_does_not_start_on_what_the_head_waits_for() -> None:
    jobs = [running_job("r", "gpus", cpus=2, gpus=3)]
    head = PendingJob(id="head", request=asked(2, 2, cpus=2, gpus=1))
    later = PendingJob(id="later", request=asked(1, 1, cpus=1, gpus=1))
    assert plan_queue([head, later], [GPU_NODE], jobs)["later"].workers == 0


FOUR = [Resources(cpus=4, gpus=0, node="n")]
WIDE = PendingJob(id="wide", request=asked(4, 4), priority=5)
SMALL = PendingJob(id="small", request=asked(1, 1), priority=1)


def test_a_less_important_job_starts_where_it_can_be_paused_for_the_head() -> None:
    busy = replace(running_job("busy", "n", cpus=3), priority=9)
    assert plan_queue([WIDE, SMALL], FOUR, [busy])["small"].workers == 0
    assert plan_queue([WIDE, SMALL], FOUR, [busy], rules=MAY_PAUSE)["small"].workers == 1
    started = replace(running_job("small", "n", cpus=1), priority=1)
    [(paused, change)] = plan_allocations([started], [WIDE], FOUR, rules=MAY_PAUSE).items()
    assert (paused, change.workers) == ("small", 0)


def test_no_job_starts_to_be_paused_at_once() -> None:
    lower = replace(running_job("lower", "n", cpus=3), priority=2)
    assert plan_queue([WIDE, SMALL], FOUR, [lower], rules=MAY_PAUSE)["small"].workers == 0
    leaving = replace(running_job("leaving", "n", cpus=3), priority=9, leaving=True)
    assert plan_queue([WIDE, SMALL], FOUR, [leaving], rules=MAY_PAUSE)["small"].workers == 0


def test_a_job_of_equal_priority_does_not_start_where_it_cannot_be_paused() -> None:
    busy = replace(running_job("busy", "n", cpus=3), priority=9)
    equal = replace(SMALL, priority=5)
    assert plan_queue([WIDE, equal], FOUR, [busy], rules=MAY_PAUSE)["small"].workers == 0
