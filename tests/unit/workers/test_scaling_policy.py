"""Who should train: a pure plan, and laws that hold over any sequence of comings and goings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from accordion_workers.controller.scaling_policy import (
    FIRST_PATIENCE_S,
    JOIN_PATIENCE_S,
    LEAVE_PATIENCE_S,
    Process,
    ScalingInput,
    ScalingPlan,
    order_nodes,
    plan_scaling,
)
from accordion_workers.records.contract import Size

TWO = Size(min=2, target=2)
ONE_TO_THREE = Size(min=1, target=3)


def ready(*numbers: int, since: float = 0.0) -> list[Process]:
    return [Process(number=number, ready_since=since) for number in numbers]


def starting(*numbers: int) -> list[Process]:
    return [Process(number=number, ready_since=None) for number in numbers]


def leaving(number: int, since: float = 0.0) -> Process:
    return Process(number=number, ready_since=0.0, leaving_since=since)


def planned(
    processes: list[Process], size: Size, group: tuple[int, ...] = (), **more: object
) -> ScalingPlan:
    fields: dict[str, object] = {"training": bool(group), "now": 0.0, **more}
    return plan_scaling(ScalingInput(processes=processes, size=size, group=group, **fields))  # type: ignore[arg-type]


def test_a_new_attempt_hires_as_many_as_are_wanted() -> None:
    assert planned([], ONE_TO_THREE) == ScalingPlan(num_to_start=3, to_stop=(), group=())


def test_a_new_group_waits_for_the_last_of_its_processes_but_not_for_ever() -> None:
    some = [*ready(0), *ready(1, since=20.0), *starting(2)]
    assert planned(some, ONE_TO_THREE, now=20.0 + FIRST_PATIENCE_S - 1).group == ()
    assert planned(some, ONE_TO_THREE, now=20.0 + FIRST_PATIENCE_S).group == (0, 1)
    assert planned(ready(0, 1, 2), ONE_TO_THREE).group == (0, 1, 2)


def test_survivors_that_are_enough_go_on_at_once_and_the_lost_one_is_replaced() -> None:
    todo = planned(ready(0, 2), ONE_TO_THREE, (0, 1, 2), training=False)
    assert (todo.group, todo.num_to_start) == ((0, 2), 1)


def test_after_losing_all_workers_the_first_new_ones_wait_briefly_for_others() -> None:
    some = [*ready(3, since=5.0), *starting(4)]
    assert (
        planned(some, ONE_TO_THREE, (0, 1), training=False, now=5.0 + JOIN_PATIENCE_S / 2).group
        == ()
    )
    assert planned(some, ONE_TO_THREE, (0, 1), training=False, now=5.0 + JOIN_PATIENCE_S).group == (
        3,
    )


def test_survivors_that_are_too_few_wait_for_the_one_that_takes_the_place() -> None:
    assert planned([*ready(1), *starting(2)], TWO, (0, 1), training=False, now=99.0).group == ()
    assert planned(ready(1, 2), TWO, (0, 1), training=False).group == (1, 2)


def test_a_group_goes_on_as_it_is_until_a_newcomer_is_ready() -> None:
    assert planned([*ready(0), *starting(1, 2)], ONE_TO_THREE, (0,)).group == (0,)


def test_newcomers_join_together_where_they_come_nearly_together() -> None:
    some = [*ready(0), *ready(1, since=5.0), *starting(2)]
    assert planned(some, ONE_TO_THREE, (0,), now=5.0 + JOIN_PATIENCE_S / 2).group == (0,)
    assert planned(some, ONE_TO_THREE, (0,), now=5.0 + JOIN_PATIENCE_S).group == (0, 1)
    assert planned([*ready(0), *ready(1, 2, since=5.0)], ONE_TO_THREE, (0,), now=5.0).group == (
        0,
        1,
        2,
    )


def test_a_smaller_size_removes_the_highest_ranks_once_they_stop_training() -> None:
    todo = planned(ready(0, 1, 2), Size(min=1, target=1), (2, 0, 1))
    assert (todo.group, todo.to_stop) == ((2,), ())
    todo = planned(ready(0, 1, 2), Size(min=1, target=1), (2,))
    assert (todo.group, todo.to_stop) == ((2,), (0, 1))


def test_who_only_starts_is_dismissed_before_who_trains() -> None:
    todo = planned([*ready(0, 1), *starting(2)], TWO, (0, 1))
    assert (todo.group, todo.to_stop, todo.num_to_start) == ((0, 1), (2,), 0)


def test_a_group_leaves_a_drained_node_at_once_where_enough_stay() -> None:
    todo = planned([*ready(0), leaving(1)], Size(min=1, target=2), (0, 1))
    assert (todo.group, todo.to_stop, todo.num_to_start) == ((0,), (), 1)
    assert planned([*ready(0), leaving(1)], Size(min=1, target=2), (0,)).to_stop == (1,)


def test_a_group_leaving_a_drained_node_takes_ready_workers_and_waits_for_no_others() -> None:
    some = [*ready(0), leaving(1), *ready(2, since=5.0), *starting(3)]
    assert planned(some, ONE_TO_THREE, (0, 1), now=5.0).group == (0, 2)


def on(node: str, *numbers: int) -> list[Process]:
    return [Process(number=number, ready_since=0.0, node=node) for number in numbers]


def sharded(
    processes: list[Process], target: int, group: tuple[int, ...] = (), **more: object
) -> ScalingPlan:
    return planned(processes, Size(min=2, target=target), group, num_shards=2, **more)


def test_a_replica_is_of_one_node_wherever_a_node_has_enough() -> None:
    assert sharded([*on("a", 0, 2), *on("b", 1, 3)], 4).group == (0, 2, 1, 3)
    assert sharded([*on("b", 1, 3), *on("a", 0, 2)], 4).group == (0, 2, 1, 3)
    assert sharded([*on("a", 0, 1, 2), *on("b", 3)], 4).group == (0, 1, 2, 3)
    assert sharded([*on("a", 0), *on("b", 1, 2), *on("c", 3)], 4).group == (1, 2, 0, 3)


def test_a_lost_process_costs_its_replica_and_no_other() -> None:
    left = [*on("a", 0), *on("b", 2, 3), *on("c", 4, 5)]
    todo = sharded(left, 6, (0, 1, 2, 3, 4, 5), training=False)
    assert (todo.group, todo.num_to_start, todo.to_stop) == ((2, 3, 4, 5), 1, ())
    todo = sharded([*left, *on("a", 6)], 6, (2, 3, 4, 5), now=JOIN_PATIENCE_S)
    assert todo.group == (2, 3, 4, 5, 0, 6)


def test_a_process_without_a_replica_joins_nothing_and_no_surplus_is_started() -> None:
    todo = sharded([*on("a", 0, 1), *on("b", 2)], 4, (0, 1), now=99.0)
    assert (todo.group, todo.num_to_start) == ((0, 1), 1)
    todo = sharded([*on("a", 0, 1)], 3, (0, 1), now=99.0)
    assert (todo.group, todo.num_to_start, todo.to_stop) == ((0, 1), 0, ())
    assert sharded(on("a", 0, 1), 3).group == (0, 1)


def test_a_smaller_size_removes_the_last_replica() -> None:
    todo = sharded([*on("a", 0, 1), *on("b", 2, 3)], 2, (2, 3, 0, 1))
    assert todo.group == (2, 3)
    left = [*on("a", 0), *on("b", 2, 3)]
    todo = sharded(left, 2, (0, 1, 2, 3), training=False)
    assert (todo.group, todo.to_stop) == ((2, 3), (0,))


def test_a_group_about_to_be_too_small_waits_for_a_process_then_saves_and_stops() -> None:
    some = [*ready(0), leaving(1), *starting(2)]
    assert planned(some, TWO, (0, 1), now=LEAVE_PATIENCE_S - 1).group == (0, 1)
    assert planned(some, TWO, (0, 1), now=LEAVE_PATIENCE_S).group == ()
    assert planned([*ready(0, 2), leaving(1)], TWO, (0, 1), now=1.0).group == (0, 2)


def test_of_processes_too_many_those_go_that_only_start_and_then_the_newest() -> None:
    one = Size(min=1, target=1)
    assert planned([*starting(0), *ready(1)], one).to_stop == (0,)
    assert planned(ready(0, 1, 8), one).to_stop == (1, 8)
    assert planned(ready(0, 1, 2), one, (2, 0, 1), training=False).to_stop == (0, 1)
    assert planned(ready(8, 1), TWO).group == (1, 8)


def test_the_patience_of_a_group_starts_at_the_first_notice_for_one_of_its_processes() -> None:
    some = [leaving(0, since=10.0), leaving(1, since=14.0), *starting(2)]
    assert planned(some, TWO, (0, 1), now=10.0 + LEAVE_PATIENCE_S - 0.5).group == (0, 1)
    assert planned(some, TWO, (0, 1), now=10.0 + LEAVE_PATIENCE_S).group == ()
    assert planned([*ready(0), leaving(5)], TWO, (0, 1), now=99.0).group == (0, 1)


PROCESSES = st.builds(
    lambda states: [
        Process(number=number, ready_since=ready_at, leaving_since=leaving_at, node=node)
        for number, (ready_at, leaving_at, node) in enumerate(states)
    ],
    st.lists(
        st.tuples(
            st.sampled_from([None, 0.0, 3.0]),
            st.sampled_from([None, None, 1.0]),
            st.sampled_from(["a", "b", "c"]),
        ),
        max_size=7,
    ),
)
SIZES = st.tuples(st.integers(1, 4), st.integers(0, 4)).map(
    lambda pair: Size(min=pair[0], target=sum(pair))
)


@st.composite
def situations(draw: st.DrawFn) -> ScalingInput:
    processes = draw(PROCESSES)
    able = [process.number for process in processes if process.ready_since is not None]
    group = draw(
        st.permutations(able).flatmap(
            lambda order: st.integers(0, len(order)).map(lambda n: order[:n])
        )
    )
    now = draw(st.floats(3.0, 30.0))
    shards, size = draw(st.integers(1, 3)), draw(SIZES)
    group = group[: len(group) - len(group) % shards]
    surplus = draw(st.integers(0, shards - 1))
    return ScalingInput(
        processes=processes,
        size=Size(min=shards * size.min, target=shards * size.target + surplus),
        group=tuple(group),
        training=bool(group) and draw(st.booleans()),
        now=now,
        num_shards=shards,
    )


def replicas(group: Sequence[int], shards: int) -> list[tuple[int, ...]]:
    return [tuple(group[start : start + shards]) for start in range(0, len(group), shards)]


@given(situations())
def test_whatever_happens_the_plan_is_sound(seen: ScalingInput) -> None:
    todo = plan_scaling(seen)
    alive = {process.number: process for process in seen.processes}
    training = set(seen.group) if seen.training else set()
    assert training.isdisjoint(todo.to_stop)
    assert len(todo.group) == len(set(todo.group))
    assert all(alive[number].ready_since is not None for number in todo.group)
    staying = [
        one
        for one in seen.processes
        if one.leaving_since is None and one.number not in todo.to_stop
    ]
    shards, target = seen.num_shards, seen.size.target // seen.num_shards * seen.num_shards
    assert len(staying) + todo.num_to_start >= target
    assert not (todo.num_to_start and len(staying) > target)
    if todo.group and todo.group != tuple(seen.group):
        assert seen.size.min <= len(todo.group) <= seen.size.target
        assert len(todo.group) % shards == 0
        before, after = replicas(seen.group, shards), replicas(todo.group, shards)
        survivors = [one for one in before if set(one) <= set(todo.group)]
        assert after[: len(survivors)] == survivors


@given(situations())
def test_following_a_plan_comes_to_rest(seen: ScalingInput) -> None:
    """Where nothing more happens and all that was hired comes up, a few rounds lead to the size
    that is wanted.
    """
    for _ in range(4):
        todo = plan_scaling(seen)
        kept = [
            replace(one, ready_since=0.0)
            for one in seen.processes
            if one.number not in todo.to_stop
        ]
        first = max((one.number for one in seen.processes), default=-1) + 1
        kept += ready(*range(first, first + todo.num_to_start))
        seen = replace(
            seen, processes=kept, group=todo.group, training=bool(todo.group), now=seen.now + 60.0
        )
    assert len(seen.group) == seen.size.target // seen.num_shards * seen.num_shards
    assert plan_scaling(seen) == ScalingPlan(num_to_start=0, to_stop=(), group=tuple(seen.group))


def test_nodes_of_processes_come_in_the_order_in_which_these_are_kept() -> None:
    starting = Process(number=0, ready_since=None, node="starts")
    unplaced = Process(number=1, ready_since=None)
    members = [
        Process(number=number, ready_since=1.0, node=f"rank-{3 - number}") for number in (2, 3)
    ]
    assert order_nodes([starting, unplaced, *members], group=(3, 2)) == (
        "rank-0",
        "rank-1",
        "starts",
    )
