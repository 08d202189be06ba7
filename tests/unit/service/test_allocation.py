"""How many workers running jobs may hold: laws of the plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion_service.domain.capacity import allocation as allocation_module
from accordion_service.domain.capacity.allocation import build_allocated_job, plan_allocations
from accordion_service.domain.capacity.bin_packing import count_fitting, fits_beside, num_unplaced
from accordion_service.domain.capacity.queue import AllocatedJob, PendingJob, QueueRules, plan_queue
from accordion_service.domain.capacity.resources import (
    ResourceRequest,
    Resources,
    sort_custom,
    worker_resources,
)
from accordion_service.domain.jobs.statuses import Status
from tests.unit.service.test_queue import ASKED, NODES, WAITING, asked

HOLDING = st.lists(st.tuples(ASKED, st.integers(1, 8)), max_size=5).map(
    lambda all_: [
        AllocatedJob(id=f"r{n}", request=one, allocated_workers=granted)
        for n, (one, granted) in enumerate(all_)
    ]
)
ONE = Resources(cpus=1, gpus=0)


def after(
    jobs: list[AllocatedJob], waiting: list[PendingJob], nodes: list[Resources]
) -> list[AllocatedJob]:
    grants = plan_allocations(jobs, waiting, nodes)
    return [
        replace(job, allocated_workers=grants[job.id].workers) if job.id in grants else job
        for job in jobs
    ]


def taken(jobs: list[AllocatedJob]) -> list[Resources]:
    return [worker_resources(job.request) for job in jobs for _ in range(job.allocated_workers)]


def grants(
    *jobs: AllocatedJob, nodes: list[Resources], waiting: list[PendingJob] | None = None
) -> list[int]:
    return [job.allocated_workers for job in after(list(jobs), waiting or [], nodes)]


def job(name: str, min_workers: int, max_workers: int, granted: int) -> AllocatedJob:
    return AllocatedJob(id=name, request=asked(min_workers, max_workers), allocated_workers=granted)


@st.composite
def in_steps(draw: st.DrawFn) -> ResourceRequest:
    """What a job asks for whose workers hold one model together."""
    request, step = draw(ASKED), draw(st.integers(1, 3))
    return replace(request, min=step * request.min, max=step * request.max, step=step)


@given(
    st.lists(st.tuples(in_steps(), st.integers(1, 8)), max_size=5),
    st.lists(in_steps(), max_size=2),
    NODES,
)
def test_jobs_hold_whole_replicas_of_workers(
    holding: list[tuple[ResourceRequest, int]],
    waiting: list[ResourceRequest],
    nodes: list[Resources],
) -> None:
    jobs = [
        AllocatedJob(id=f"r{n}", request=one, allocated_workers=one.step * granted)
        for n, (one, granted) in enumerate(holding)
    ]
    pending = [PendingJob(id=f"p{n}", request=one, priority=n) for n, one in enumerate(waiting)]
    planned = after(jobs, pending, nodes)
    assert all(job.allocated_workers % job.request.step == 0 for job in planned)
    admitted = plan_queue(pending, nodes, planned)
    assert all(admitted[one.id].workers % one.request.step == 0 for one in pending)


def test_a_job_in_steps_grows_by_what_makes_a_replica() -> None:
    sharded = replace(job("a", 2, 8, 2), request=replace(asked(2, 8), step=2))
    assert grants(sharded, nodes=[Resources(cpus=5, gpus=0)]) == [4]
    assert grants(replace(sharded, allocated_workers=6), nodes=[Resources(cpus=5, gpus=0)]) == [4]


@given(HOLDING, WAITING, NODES)
def test_allocation_stays_within_the_limits_of_users(
    jobs: list[AllocatedJob], waiting: list[PendingJob], nodes: list[Resources]
) -> None:
    for old, new in zip(jobs, after(jobs, waiting, nodes), strict=True):
        assert (
            min(old.allocated_workers, old.request.min) <= new.allocated_workers <= old.request.max
        )


@given(HOLDING, WAITING, NODES)
def test_no_job_grows_beyond_the_capacity(
    jobs: list[AllocatedJob], waiting: list[PendingJob], nodes: list[Resources]
) -> None:
    new = after(jobs, waiting, nodes)
    if any(
        one.allocated_workers > old.allocated_workers for old, one in zip(jobs, new, strict=True)
    ):
        assert num_unplaced(taken(new), nodes) == 0


@given(HOLDING, NODES)
def test_nothing_is_taken_that_would_have_had_a_place(
    jobs: list[AllocatedJob], nodes: list[Resources]
) -> None:
    kept = [
        replace(job, allocated_workers=min(job.allocated_workers, job.request.max)) for job in jobs
    ]
    new = after(kept, [], nodes)
    for place, (old, one) in enumerate(zip(kept, new, strict=True)):
        if one.allocated_workers < old.allocated_workers:
            one_more = [
                *new[:place],
                replace(one, allocated_workers=one.allocated_workers + 1),
                *new[place + 1 :],
            ]
            assert num_unplaced(taken(one_more), nodes) > num_unplaced(taken(new), nodes)


@given(HOLDING, WAITING, NODES)
def test_no_job_grows_while_a_job_waits_that_fits_the_cluster(
    jobs: list[AllocatedJob], waiting: list[PendingJob], nodes: list[Resources]
) -> None:
    new = after(jobs, waiting, nodes)
    if any(
        count_fitting(worker_resources(one.request), nodes, ()) >= one.request.min
        for one in waiting
    ):
        assert all(
            one.allocated_workers <= old.allocated_workers
            for old, one in zip(jobs, new, strict=True)
        )


def test_jobs_shrink_until_no_fewer_workers_would_help() -> None:
    sizes = [(1, 1, 0.25, 0, 1), (1, 1, 0.25, 0, 1), (2, 2, 2, 0, 2), (3, 4, 4, 0, 4)]
    jobs = [
        AllocatedJob(id=str(n), request=asked(least, most, cpus, gpus), allocated_workers=held)
        for n, (least, most, cpus, gpus, held) in enumerate([*sizes, (1, 2, 0.25, 1, 2)])
    ]
    sizes_of_nodes = [(1, 1), (8, 0), (8, 1)]
    nodes = [Resources(cpus=cpus, gpus=gpus) for cpus, gpus in sizes_of_nodes]
    once = after(jobs, [], nodes)
    assert after(once, [], nodes) == once


@given(HOLDING, WAITING, NODES)
def test_a_plan_takes_nothing_back_that_it_gave(
    jobs: list[AllocatedJob], waiting: list[PendingJob], nodes: list[Resources]
) -> None:
    new = after(jobs, waiting, nodes)
    again = after(new, waiting, nodes)
    assert all(
        two.allocated_workers >= one.allocated_workers for one, two in zip(new, again, strict=True)
    )


@given(HOLDING, WAITING)
def test_cluster_without_nodes_changes_only_what_users_requested(
    jobs: list[AllocatedJob], waiting: list[PendingJob]
) -> None:
    assert [one.allocated_workers for one in after(jobs, waiting, [])] == [
        min(one.allocated_workers, one.request.max) for one in jobs
    ]


def test_the_first_in_order_grows_first() -> None:
    assert grants(job("a", 1, 3, 1), job("b", 1, 8, 1), nodes=[Resources(cpus=6, gpus=0)]) == [3, 3]


def test_the_last_in_order_shrinks_first_and_no_further_than_is_needed() -> None:
    assert grants(job("a", 1, 4, 4), job("b", 1, 4, 4), nodes=[Resources(cpus=6, gpus=0)]) == [4, 2]
    assert grants(job("a", 1, 4, 4), job("b", 2, 4, 4), nodes=[Resources(cpus=5, gpus=0)]) == [3, 2]


def test_a_group_that_does_not_fit_even_at_its_minimum_waits_with_its_minimum() -> None:
    assert grants(job("a", 3, 4, 4), nodes=[ONE]) == [3]


def test_job_keeps_capacity_that_no_unplaced_job_can_use() -> None:
    lost = AllocatedJob(id="a", request=asked(2, 2, gpus=1), allocated_workers=2)
    assert grants(lost, job("b", 1, 4, 4), nodes=[Resources(cpus=4, gpus=0)]) == [2, 4]


def test_what_a_larger_jobs_shrinking_made_needless_is_given_back_as_far_as_it_fits() -> None:
    large = AllocatedJob(id="a", request=asked(1, 2, cpus=4), allocated_workers=2)
    small = AllocatedJob(id="b", request=asked(1, 3, cpus=2), allocated_workers=3)
    assert grants(large, small, nodes=[Resources(cpus=8, gpus=0)]) == [1, 2]


def test_the_first_in_order_is_given_back_first() -> None:
    jobs = [
        AllocatedJob(id=str(cpus), request=asked(1, 5, cpus), allocated_workers=held)
        for cpus, held in ((3, 2), (1, 2), (2, 3))
    ]
    assert grants(*jobs, nodes=[Resources(cpus=8, gpus=0)]) == [1, 2, 1]


def test_nothing_is_given_back_above_a_lowered_maximum() -> None:
    lost = AllocatedJob(id="a", request=asked(1, 1, cpus=4), allocated_workers=4)
    assert grants(lost, job("b", 1, 1, 2), nodes=[Resources(cpus=3, gpus=0)]) == [1, 1]


def test_a_job_grows_by_as_many_as_have_room_when_all_are_packed_anew() -> None:
    grows = AllocatedJob(id="a", request=asked(2, 3, cpus=4), allocated_workers=1)
    beside = AllocatedJob(id="b", request=asked(2, 2, cpus=3), allocated_workers=2)
    nodes = [Resources(cpus=10, gpus=0), Resources(cpus=2, gpus=0), Resources(cpus=8, gpus=1)]
    assert grants(grows, beside, nodes=nodes) == [2, 2]


def test_a_job_does_not_grow_where_repacking_leaves_a_larger_worker_unplaced() -> None:
    large = AllocatedJob(id="a", request=asked(2, 3, cpus=5), allocated_workers=2)
    on_gpus = AllocatedJob(id="b", request=asked(2, 3, cpus=1, gpus=1), allocated_workers=1)
    assert grants(large, on_gpus, nodes=[Resources(cpus=6, gpus=2), Resources(cpus=8, gpus=2)]) == [
        2,
        1,
    ]


def test_no_job_grows_while_a_job_waits_that_just_fits_an_empty_cluster() -> None:
    waits = [PendingJob(id="w", request=asked(3, 3))]
    assert grants(job("a", 1, 3, 1), waiting=waits, nodes=[Resources(cpus=3, gpus=0)]) == [1]


def test_a_minimum_above_the_grant_is_grown_to_when_there_is_room() -> None:
    assert grants(job("a", 3, 4, 1), nodes=[ONE]) == [1]
    assert grants(job("a", 3, 4, 1), nodes=[Resources(cpus=9, gpus=0)]) == [4]


def test_a_lowered_maximum_gives_back_room_at_once() -> None:
    assert grants(job("a", 1, 2, 4), nodes=[Resources(cpus=9, gpus=0)]) == [2]


def test_the_reason_is_a_sentence() -> None:
    plan = plan_allocations([job("a", 1, 2, 4), job("b", 1, 5, 1)], [], [Resources(cpus=9, gpus=0)])
    assert [grant.why for grant in plan.values()] == [
        "users allow at most 2",
        "there is free capacity and no job waits for it",
    ]
    plan = plan_allocations([job("a", 1, 2, 4), job("b", 1, 5, 3)], [], [Resources(cpus=4, gpus=0)])
    assert [grant.why for grant in plan.values()] == [
        "users allow at most 2",
        "the nodes that accept workers have no capacity for more",
    ]


def test_only_a_job_that_trains_grows_and_one_that_leaves_is_left_alone() -> None:
    wanted = ResourceRequest(min=1, max=4, cpus=1, gpus=0)
    jobs = [
        build_allocated_job(status.value, status, wanted, allocated_workers=2)
        for status in (Status.STARTING, Status.PAUSING)
    ]
    assert grants(*jobs, nodes=[Resources(cpus=9, gpus=0)]) == [2, 2]
    assert grants(*jobs, nodes=[Resources(cpus=3, gpus=0)]) == [1, 2]
    assert grants(
        build_allocated_job("r", Status.RUNNING, wanted, allocated_workers=2),
        nodes=[Resources(cpus=9, gpus=0)],
    ) == [4]


def test_a_full_cluster_is_packed_a_few_times_however_many_jobs_could_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    for name in ("count_fitting", "num_unplaced"):
        counted = getattr(allocation_module, name)
        monkeypatch.setattr(
            allocation_module,
            name,
            lambda *given, counted=counted: (calls.append(1), counted(*given))[1],
        )
    jobs = [
        AllocatedJob(id=str(n), request=asked(1, 8, cpus=1 + n % 2), allocated_workers=1)
        for n in range(40)
    ]
    waiting = [PendingJob(id=f"w{n}", request=asked(99, 99)) for n in range(40)]
    assert plan_allocations(jobs, waiting, [Resources(cpus=60, gpus=0)]) == {}
    assert len(calls) <= 4


def ranked(rows: list[tuple[ResourceRequest, int, int]]) -> list[AllocatedJob]:
    """Jobs in order of priority, none above its maximum."""
    return [
        AllocatedJob(
            id=f"r{n}", request=one, allocated_workers=min(granted, one.max), priority=priority
        )
        for n, (one, granted, priority) in enumerate(sorted(rows, key=lambda row: -row[2]))
    ]


ANYWHERE = ASKED.map(lambda one: replace(one, selector=frozenset()))
RANKED = st.lists(st.tuples(ANYWHERE, st.integers(1, 8), st.integers(0, 3)), max_size=5).map(ranked)
HEAD = st.builds(
    lambda one, priority: PendingJob(id="head", request=one, priority=priority),
    ANYWHERE,
    st.integers(0, 3),
)


@given(RANKED, HEAD, st.integers(0, 8), st.booleans())
def test_capacity_is_taken_from_less_important_jobs_and_only_if_the_head_then_starts(
    jobs: list[AllocatedJob], head: PendingJob, free: int, may_pause: bool
) -> None:
    used = [*taken(jobs), worker_resources(head.request)]
    custom = sum((Counter(dict(one.custom)) for one in used), Counter())
    nodes = [
        Resources(
            cpus=free + sum(one.cpus for one in used),
            gpus=sum(one.gpus for one in used),
            custom=sort_custom(custom),
        )
    ]
    changes = plan_allocations(jobs, [head], nodes, rules=QueueRules(may_pause=may_pause))
    if count_fitting(worker_resources(head.request), nodes, ()) < head.request.min:
        return  # it never starts, so jobs grow
    now = {one.id: one.allocated_workers for one in jobs}
    now |= {name: change.workers for name, change in changes.items()}
    new = [replace(one, allocated_workers=now[one.id]) for one in jobs]
    for old, one in zip(jobs, new, strict=True):
        least = min(old.allocated_workers, old.request.min)
        assert least <= one.allocated_workers <= old.allocated_workers or (
            may_pause and one.allocated_workers == 0
        )
        assert one == old or old.priority < head.priority
    if changes:
        assert fits_beside(head.request, nodes, taken(new))
        assert plan_allocations(new, [head], nodes, rules=QueueRules(may_pause=may_pause)) == {}


ALIKE = st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 3)).map(
    lambda row: (asked(row[0], row[0] + row[1]), row[0] + row[1], row[2])
)


@given(st.lists(ALIKE, max_size=5), st.integers(1, 6), st.booleans())
def test_no_more_is_taken_than_the_head_needs(
    rows: list[tuple[ResourceRequest, int, int]], least: int, may_pause: bool
) -> None:
    jobs = ranked(rows)
    nodes = [Resources(cpus=float(max(least, len(taken(jobs)))), gpus=0)]
    head = PendingJob(id="head", request=asked(least, least), priority=2)
    changes = plan_allocations(jobs, [head], nodes, rules=QueueRules(may_pause=may_pause))
    now = {one.id: one.allocated_workers for one in jobs}
    now |= {name: change.workers for name, change in changes.items()}
    for changed, change in changes.items():
        back = [replace(one, allocated_workers=now[one.id]) for one in jobs]
        place = next(n for n, one in enumerate(back) if one.id == changed)
        more = max(change.workers + 1, jobs[place].request.min)
        back[place] = replace(back[place], allocated_workers=more)
        assert not fits_beside(head.request, nodes, taken(back))


def important(least: int, priority: int) -> PendingJob:
    return PendingJob(id="head", request=asked(least, least), priority=priority)


def test_a_more_important_job_takes_workers_above_the_minimum_from_the_last_in_order() -> None:
    first, last = job("first", 1, 4, 4), job("last", 1, 4, 4)
    eight = [Resources(cpus=8, gpus=0)]
    assert grants(first, last, nodes=eight, waiting=[important(2, 1)]) == [4, 2]
    assert grants(first, last, nodes=eight, waiting=[important(5, 1)]) == [2, 1]


def test_a_job_of_equal_priority_takes_nothing() -> None:
    nodes = [Resources(cpus=4, gpus=0)]
    assert grants(job("a", 1, 4, 4), nodes=nodes, waiting=[important(1, 0)]) == [4]


def test_nothing_is_taken_for_a_job_that_would_still_not_fit() -> None:
    kept = replace(job("kept", 3, 3, 3), priority=9)
    nodes = [Resources(cpus=6, gpus=0)]
    assert grants(kept, job("low", 1, 3, 3), nodes=nodes, waiting=[important(4, 5)]) == [3, 3]


def test_a_job_is_paused_only_if_that_is_allowed_and_shrinking_is_not_enough() -> None:
    jobs, nodes = [job("a", 2, 2, 2), job("b", 2, 2, 2)], [Resources(cpus=4, gpus=0)]
    assert plan_allocations(jobs, [important(2, 1)], nodes) == {}
    [(paused, change)] = plan_allocations(
        jobs, [important(2, 1)], nodes, rules=QueueRules(may_pause=True)
    ).items()
    assert (paused, change.workers) == ("b", 0)
    assert change.why == "job head with priority 1 needs the capacity"


def test_nothing_is_taken_where_leaving_jobs_make_room_anyway() -> None:
    leaving = build_allocated_job("gone", Status.PAUSING, asked(1, 2), allocated_workers=2)
    nodes = [Resources(cpus=4, gpus=0)]
    assert grants(leaving, job("low", 1, 2, 2), nodes=nodes, waiting=[important(2, 5)]) == [2, 2]


def test_nothing_is_taken_because_of_what_other_programs_use() -> None:
    nodes = [Resources(cpus=4, gpus=0, node="n")]
    used = [Resources(cpus=2, gpus=0, node="n")]
    low, head = job("low", 1, 2, 2), important(2, 5)
    assert plan_allocations([low], [head], nodes, foreign=used) == {}
    assert plan_allocations([job("low", 1, 3, 3)], [head], nodes, foreign=used) == {}


def test_no_job_is_paused_because_of_what_other_programs_use() -> None:
    nodes = [Resources(cpus=4, gpus=0, node="n")]
    used = [Resources(cpus=2, gpus=0, node="n")]
    low, head = job("low", 1, 3, 3), important(2, 5)
    assert (
        plan_allocations([low], [head], nodes, foreign=used, rules=QueueRules(may_pause=True)) == {}
    )


def test_a_lowered_maximum_keeps_its_own_reason() -> None:
    low = replace(job("low", 1, 1, 3), priority=0)
    nodes = [Resources(cpus=4, gpus=0)]
    [change] = plan_allocations([low, job("b", 1, 2, 1)], [important(2, 5)], nodes).values()
    assert change.why == "users allow at most 1"


def test_a_job_takes_nothing_from_one_that_its_age_puts_ahead() -> None:
    nodes = [Resources(cpus=4, gpus=0)]
    aged, young = replace(job("aged", 1, 4, 4), rank=9.0), job("young", 1, 4, 4)
    head = replace(important(1, 5), rank=5.0)
    assert grants(aged, nodes=nodes, waiting=[head]) == [4]
    assert grants(young, nodes=nodes, waiting=[head]) == [3]


def test_a_blocked_head_is_the_first_that_could_ever_start() -> None:
    never, next_ = important(9, 7), PendingJob(id="next", request=asked(1, 1), priority=6)
    nodes = [Resources(cpus=4, gpus=0)]
    assert grants(job("low", 1, 4, 4), nodes=nodes, waiting=[never, next_]) == [3]
