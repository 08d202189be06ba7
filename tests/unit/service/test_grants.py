"""How many workers running jobs may hold: laws of the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain import grants as grants_module
from service.domain.grants import Holding, holding, plan_grants
from service.domain.jobs import Status
from service.domain.queue import Asked, Size, Waiting, fitting, num_homeless, size_of
from tests.unit.service.test_queue import ASKED, NODES, WAITING, asked

HOLDING = st.lists(st.tuples(ASKED, st.integers(1, 8)), max_size=5).map(
    lambda all_: [
        Holding(id=f"r{n}", asked=one, granted=granted) for n, (one, granted) in enumerate(all_)
    ]
)
ONE = Size(cpus=1, gpus=0)


def after(jobs: list[Holding], waiting: list[Waiting], nodes: list[Size]) -> list[Holding]:
    grants = plan_grants(jobs, waiting, nodes)
    return [
        replace(job, granted=grants[job.id].workers) if job.id in grants else job for job in jobs
    ]


def taken(jobs: list[Holding]) -> list[Size]:
    return [size_of(job.asked) for job in jobs for _ in range(job.granted)]


def grants(*jobs: Holding, nodes: list[Size], waiting: list[Waiting] | None = None) -> list[int]:
    return [job.granted for job in after(list(jobs), waiting or [], nodes)]


def job(name: str, least: int, most: int, granted: int) -> Holding:
    return Holding(id=name, asked=asked(least, most), granted=granted)


@given(HOLDING, WAITING, NODES)
def test_a_grant_stays_within_what_people_allow(
    jobs: list[Holding], waiting: list[Waiting], nodes: list[Size]
) -> None:
    for old, new in zip(jobs, after(jobs, waiting, nodes), strict=True):
        assert min(old.granted, old.asked.min) <= new.granted <= old.asked.max


@given(HOLDING, WAITING, NODES)
def test_nobody_grows_above_the_room(
    jobs: list[Holding], waiting: list[Waiting], nodes: list[Size]
) -> None:
    new = after(jobs, waiting, nodes)
    if any(one.granted > old.granted for old, one in zip(jobs, new, strict=True)):
        assert num_homeless(taken(new), nodes) == 0


@given(HOLDING, NODES)
def test_nothing_is_taken_that_would_have_had_a_place(
    jobs: list[Holding], nodes: list[Size]
) -> None:
    kept = [replace(job, granted=min(job.granted, job.asked.max)) for job in jobs]
    new = after(kept, [], nodes)
    for place, (old, one) in enumerate(zip(kept, new, strict=True)):
        if one.granted < old.granted:
            one_more = [*new[:place], replace(one, granted=one.granted + 1), *new[place + 1 :]]
            assert num_homeless(taken(one_more), nodes) > num_homeless(taken(new), nodes)


@given(HOLDING, WAITING, NODES)
def test_nobody_grows_while_one_waits_who_could_ever_have_room(
    jobs: list[Holding], waiting: list[Waiting], nodes: list[Size]
) -> None:
    new = after(jobs, waiting, nodes)
    if any(fitting(size_of(one.asked), nodes, ()) >= one.asked.min for one in waiting):
        assert all(one.granted <= old.granted for old, one in zip(jobs, new, strict=True))


@given(HOLDING, WAITING, NODES)
def test_a_plan_takes_nothing_back_that_it_gave(
    jobs: list[Holding], waiting: list[Waiting], nodes: list[Size]
) -> None:
    new = after(jobs, waiting, nodes)
    again = after(new, waiting, nodes)
    assert all(two.granted >= one.granted for one, two in zip(new, again, strict=True))


@given(HOLDING, WAITING)
def test_a_cluster_without_nodes_changes_only_what_people_asked_for(
    jobs: list[Holding], waiting: list[Waiting]
) -> None:
    assert [one.granted for one in after(jobs, waiting, [])] == [
        min(one.granted, one.asked.max) for one in jobs
    ]


def test_the_first_in_order_grows_first() -> None:
    assert grants(job("a", 1, 3, 1), job("b", 1, 8, 1), nodes=[Size(cpus=6, gpus=0)]) == [3, 3]


def test_the_last_in_order_shrinks_first_and_no_further_than_is_needed() -> None:
    assert grants(job("a", 1, 4, 4), job("b", 1, 4, 4), nodes=[Size(cpus=6, gpus=0)]) == [4, 2]
    assert grants(job("a", 1, 4, 4), job("b", 2, 4, 4), nodes=[Size(cpus=5, gpus=0)]) == [3, 2]


def test_a_group_that_does_not_fit_even_at_its_minimum_waits_with_its_minimum() -> None:
    assert grants(job("a", 3, 4, 4), nodes=[ONE]) == [3]


def test_a_job_whose_room_is_of_no_use_to_those_without_keeps_it() -> None:
    lost = Holding(id="a", asked=asked(2, 2, gpus=1), granted=2)
    assert grants(lost, job("b", 1, 4, 4), nodes=[Size(cpus=4, gpus=0)]) == [2, 4]


def test_what_a_larger_jobs_shrinking_made_needless_is_given_back_as_far_as_it_fits() -> None:
    large = Holding(id="a", asked=asked(1, 2, cpus=4), granted=2)
    small = Holding(id="b", asked=asked(1, 3, cpus=2), granted=3)
    assert grants(large, small, nodes=[Size(cpus=8, gpus=0)]) == [1, 2]


def test_the_first_in_order_is_given_back_first() -> None:
    jobs = [
        Holding(id=str(cpus), asked=asked(1, 5, cpus), granted=held)
        for cpus, held in ((3, 2), (1, 2), (2, 3))
    ]
    assert grants(*jobs, nodes=[Size(cpus=8, gpus=0)]) == [1, 2, 1]


def test_nothing_is_given_back_above_a_lowered_maximum() -> None:
    lost = Holding(id="a", asked=asked(1, 1, cpus=4), granted=4)
    assert grants(lost, job("b", 1, 1, 2), nodes=[Size(cpus=3, gpus=0)]) == [1, 1]


def test_a_job_grows_by_as_many_as_have_room_when_all_are_packed_anew() -> None:
    grows = Holding(id="a", asked=asked(2, 3, cpus=4), granted=1)
    beside = Holding(id="b", asked=asked(2, 2, cpus=3), granted=2)
    nodes = [Size(cpus=10, gpus=0), Size(cpus=2, gpus=0), Size(cpus=8, gpus=1)]
    assert grants(grows, beside, nodes=nodes) == [2, 2]


def test_a_job_does_not_grow_where_repacking_leaves_a_larger_worker_unplaced() -> None:
    large = Holding(id="a", asked=asked(2, 3, cpus=5), granted=2)
    on_gpus = Holding(id="b", asked=asked(2, 3, cpus=1, gpus=1), granted=1)
    assert grants(large, on_gpus, nodes=[Size(cpus=6, gpus=2), Size(cpus=8, gpus=2)]) == [2, 1]


def test_nobody_grows_while_one_waits_who_would_just_fit_an_empty_cluster() -> None:
    waits = [Waiting(id="w", asked=asked(3, 3))]
    assert grants(job("a", 1, 3, 1), waiting=waits, nodes=[Size(cpus=3, gpus=0)]) == [1]


def test_a_minimum_above_the_grant_is_grown_to_when_there_is_room() -> None:
    assert grants(job("a", 3, 4, 1), nodes=[ONE]) == [1]
    assert grants(job("a", 3, 4, 1), nodes=[Size(cpus=9, gpus=0)]) == [4]


def test_a_lowered_maximum_gives_back_room_at_once() -> None:
    assert grants(job("a", 1, 2, 4), nodes=[Size(cpus=9, gpus=0)]) == [2]


def test_the_reason_is_a_sentence() -> None:
    plan = plan_grants([job("a", 1, 2, 4), job("b", 1, 5, 1)], [], [Size(cpus=9, gpus=0)])
    assert [grant.why for grant in plan.values()] == [
        "people allow at most 2",
        "there is room and nobody waits for it",
    ]
    plan = plan_grants([job("a", 1, 2, 4), job("b", 1, 5, 3)], [], [Size(cpus=4, gpus=0)])
    assert [grant.why for grant in plan.values()] == [
        "people allow at most 2",
        "the nodes that take workers have no room for more",
    ]


def test_only_a_job_that_trains_grows_and_one_that_leaves_is_left_alone() -> None:
    wanted = Asked(min=1, max=4, cpus=1, gpus=0)
    jobs = [
        holding(status.value, status, wanted, granted=2)
        for status in (Status.STARTING, Status.PAUSING)
    ]
    assert grants(*jobs, nodes=[Size(cpus=9, gpus=0)]) == [2, 2]
    assert grants(*jobs, nodes=[Size(cpus=3, gpus=0)]) == [1, 2]
    assert grants(
        holding("r", Status.RUNNING, wanted, granted=2), nodes=[Size(cpus=9, gpus=0)]
    ) == [4]


def test_a_full_cluster_is_packed_a_few_times_however_many_jobs_could_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    for name in ("fitting", "num_homeless"):
        counted = getattr(grants_module, name)
        monkeypatch.setattr(
            grants_module,
            name,
            lambda *given, counted=counted: (calls.append(1), counted(*given))[1],
        )
    jobs = [Holding(id=str(n), asked=asked(1, 8, cpus=1 + n % 2), granted=1) for n in range(40)]
    waiting = [Waiting(id=f"w{n}", asked=asked(99, 99)) for n in range(40)]
    assert plan_grants(jobs, waiting, [Size(cpus=60, gpus=0)]) == {}
    assert len(calls) <= 4
