"""Laws of the states of an override, over random events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.messages import Ack
from accordion_service.domain.overrides import transitions
from accordion_service.domain.overrides.states import LIVE, ORDERED, OverrideStatus, SwitchReport

LAYERS = ["fc1", "fc2", "fc3"]
GLOBS = st.sampled_from([("*",), ("fc1",), ("fc2",), ("fc1", "fc2"), ("fc[23]",)])
STATES_OF_ALL = [
    "PENDING",
    "DELIVERED",
    "APPLIED",
    "REJECTED",
    "SUPERSEDED",
    "EXPIRED",
    "CANCELLED",
]
STATES = st.sampled_from(STATES_OF_ALL)
UNTIL = st.none() | st.integers(1, 30)
STATUSES = st.builds(
    OverrideStatus,
    id=st.just("a"),
    number=st.just(1),
    layers=GLOBS,
    until=UNTIL,
    orders_version=st.just(1),
    state=STATES,
)
ACKS = st.lists(
    st.builds(Ack, rank=st.integers(-1, 4), step=st.just(9), digest=st.sampled_from("de")),
    max_size=5,
).map(tuple)


def switched(world_size: int, acks: tuple[Ack, ...]) -> SwitchReport:
    return SwitchReport(
        epoch=3, step=9, world_size=world_size, digest="d", override_ids=("a",), acks=acks
    )


@given(STATUSES, st.integers(1, 4), ACKS)
def test_it_is_applied_exactly_when_every_rank_runs_the_announced_plan(
    status: OverrideStatus, world_size: int, acks: tuple[Ack, ...]
) -> None:
    new = transitions.acknowledge(status, switched(world_size, acks))
    complete = sorted((ack.rank, ack.digest) for ack in acks) == [
        (rank, "d") for rank in range(world_size)
    ]
    if status.state in ORDERED:
        assert new.state == ("APPLIED" if complete else "DELIVERED")
        assert bool(new.message) != complete
    else:
        assert new == status


@given(STATUSES, st.lists(st.integers(0, 30), max_size=6))
def test_what_is_over_by_decision_never_comes_back(
    status: OverrideStatus, epochs: list[int]
) -> None:
    new = status
    for epoch in epochs:
        new = transitions.expire(transitions.restart(transitions.deliver(new, 9), epoch, 0), epoch)
    if status.state in {"REJECTED", "SUPERSEDED", "CANCELLED"}:
        assert new == status


@given(STATUSES, st.integers(0, 30))
def test_nothing_lives_beyond_its_interval_or_its_job(status: OverrideStatus, epoch: int) -> None:
    expired = transitions.expire(status, epoch)
    assert expired.state not in LIVE or status.until is None or epoch < status.until
    assert transitions.end(status).state not in LIVE


@given(STATUSES, st.integers(0, 30))
def test_work_rolled_back_into_the_interval_brings_it_back(
    status: OverrideStatus, epoch: int
) -> None:
    again = transitions.restart(status, epoch, 0)
    if status.state in {"APPLIED", "EXPIRED", "DELIVERED"}:
        held = status.until is None or epoch < status.until
        assert again.state == ("DELIVERED" if held else "EXPIRED")
        assert not held or not again.acks


@given(st.lists(st.tuples(GLOBS, UNTIL, STATES), min_size=1, max_size=5))
def test_only_what_newer_applied_ones_hold_to_the_end_is_superseded(
    raw: list[tuple[tuple[str, ...], int | None, str]],
) -> None:
    load_override_statuses = [
        OverrideStatus(
            id=str(n), number=n, layers=globs, until=until, orders_version=n, state=state
        )  # type: ignore[arg-type]
        for n, (globs, until, state) in enumerate(raw)
    ]
    for old, new in zip(
        load_override_statuses, transitions.supersede(load_override_statuses, LAYERS), strict=True
    ):
        if new != old:
            assert new.state == "SUPERSEDED"
            assert any(
                other.number > old.number and other.state == "APPLIED"
                for other in load_override_statuses
            )


def status(number: int, state: str = "APPLIED", **more: Any) -> OverrideStatus:
    whole = {"id": str(number), "layers": ("*",), "until": None, "orders_version": number, **more}
    return OverrideStatus(number=number, state=state, **whole)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("confirmed", "state"), [(2, "PENDING"), (3, "DELIVERED"), (4, "DELIVERED")]
)
def test_it_is_delivered_with_the_first_orders_that_hold_it(confirmed: int, state: str) -> None:
    assert transitions.deliver(status(3, "PENDING"), confirmed).state == state


def test_a_plan_without_it_says_nothing_of_it() -> None:
    pending = status(3, "PENDING")
    assert (
        transitions.acknowledge(pending, switched(1, (Ack(rank=0, step=9, digest="d"),))) == pending
    )


def test_a_rank_that_answers_twice_confirms_nothing() -> None:
    twice = (Ack(rank=0, step=9, digest="d"),) * 2
    new = transitions.acknowledge(status(3, "DELIVERED", id="a"), switched(1, twice))
    assert (new.state, new.message) == ("DELIVERED", "unexpected or twice: rank 0 (of 1 workers)")


@pytest.mark.parametrize("state", STATES_OF_ALL)
def test_the_workers_reject_whatever_is_part_of_their_orders(state: str) -> None:
    assert (transitions.reject(status(1, state), "no").state == "REJECTED") == (
        state in ORDERED or state == "REJECTED"
    )


def test_layers_of_a_cancelled_override_return_to_the_policy_not_to_superseded_ones() -> None:
    same, other = (
        replace(status(1, "SUPERSEDED", layers=("fc1",)), message="held by #5"),
        status(2, "SUPERSEDED", layers=("fc3",)),
    )
    batch, live = status(3, "SUPERSEDED", target="batch"), status(4, layers=("fc1",))
    handed, newer = status(5, layers=("fc1", "fc2")), status(6, "SUPERSEDED", layers=("fc1",))
    new = transitions.cancel_with_superseded(
        [same, other, batch, live, handed, newer], handed, LAYERS, by="ada"
    )
    assert [one.state for one in new] == [
        "CANCELLED",
        "SUPERSEDED",
        "SUPERSEDED",
        "APPLIED",
        "CANCELLED",
        "SUPERSEDED",
    ]
    assert [new[0].message, new[4].message] == [
        "held by #5; cancelled with #5 by ada",
        "cancelled by ada",
    ]


@pytest.mark.parametrize(("reason", "words"), [(" the\nloss ", ": the loss"), (" \n", "")])
def test_the_message_of_a_cancellation_has_the_words_of_its_reason(reason: str, words: str) -> None:
    assert transitions.cancel(status(1), by="ada", reason=reason).message == (
        f"cancelled by ada{words}"
    )


def test_an_override_whose_epochs_ended_before_all_workers_had_it_never_held() -> None:
    late, held = replace(status(1, until=5), step=None), replace(status(2, until=5), step=40)
    messages = [transitions.expire(one, 5).message for one in (late, held)]
    never = "epoch 5 began before all workers had switched to it"
    assert messages == [never, "it held until epoch 5"]


@pytest.mark.parametrize(("step", "place"), [(8, (None, None)), (9, (3, 9)), (12, (3, 9))])
def test_a_new_group_has_acknowledged_nothing_and_rolls_back_what_followed_its_start(
    step: int, place: tuple[int | None, int | None]
) -> None:
    acks = (Ack(rank=0, step=9, digest="d"),)
    again = transitions.restart(status(1, acks=acks, epoch=3, step=9, world_size=1), 4, step)
    assert (again.acks, again.epoch, again.step, again.world_size) == ((), *place, None)


def test_what_came_into_force_before_a_new_group_keeps_its_place_when_that_switches() -> None:
    before = transitions.restart(status(1, id="a", acks=(), epoch=1, step=4, world_size=2), 3, 9)
    again = transitions.acknowledge(before, switched(1, (Ack(rank=0, step=9, digest="d"),)))
    assert (again.state, again.epoch, again.step, again.world_size) == ("APPLIED", 1, 4, 1)


@pytest.mark.parametrize(
    ("older", "newer", "state"),
    [
        ({"until": 9}, {"until": 9}, "SUPERSEDED"),
        ({"until": 9}, {"until": None}, "SUPERSEDED"),
        ({"until": 9}, {"until": 8}, "APPLIED"),
        ({"layers": ("fc1", "fc2")}, {"layers": ("fc1",)}, "APPLIED"),
        ({"layers": ("fc1", "fc2")}, {"layers": ("fc[12]",)}, "SUPERSEDED"),
        ({}, {"state": "DELIVERED"}, "APPLIED"),
        ({"target": "batch"}, {}, "APPLIED"),
        ({"target": "batch"}, {"target": "batch"}, "SUPERSEDED"),
        ({"target": "local_steps"}, {}, "APPLIED"),
        ({"target": "local_steps"}, {"target": "batch"}, "APPLIED"),
        ({"target": "local_steps"}, {"target": "local_steps"}, "SUPERSEDED"),
        ({}, {"target": "local_steps"}, "APPLIED"),
        ({"layers": ("no-such-layer",)}, {}, "APPLIED"),
    ],
)
def test_one_is_superseded_where_a_newer_one_holds_all_of_it_as_long(
    older: dict[str, Any], newer: dict[str, Any], state: str
) -> None:
    both = [status(1, **older), status(2, **newer)]
    assert [one.state for one in transitions.supersede(both, LAYERS)] == [state, both[1].state]


def test_a_newer_one_that_ends_earlier_supersedes_nothing() -> None:
    older = OverrideStatus(
        id="a", number=1, layers=("*",), until=None, orders_version=1, state="APPLIED"
    )
    newer = OverrideStatus(
        id="b", number=2, layers=("*",), until=10, orders_version=2, state="APPLIED"
    )
    assert transitions.supersede([older, newer], LAYERS) == [older, newer]


def test_the_sentence_names_the_ranks_that_are_missing_or_differ() -> None:
    status = OverrideStatus(id="a", number=1, layers=("*",), until=None, orders_version=1)
    acks = (Ack(rank=0, step=9, digest="d"), Ack(rank=2, step=9, digest="e"))
    new = transitions.acknowledge(status, switched(4, acks))
    assert new.message == "not switched yet: rank 1, 3; running another plan: rank 2 (of 4 workers)"


def test_the_first_switch_says_where_it_was_applied() -> None:
    status = OverrideStatus(id="a", number=1, layers=("*",), until=None, orders_version=1)
    acks = (Ack(rank=0, step=9, digest="d"),)
    first = transitions.acknowledge(status, switched(1, acks))
    later = SwitchReport(epoch=7, step=99, world_size=1, digest="d", override_ids=("a",), acks=acks)
    assert transitions.acknowledge(first, later).epoch == 3


def test_one_applied_after_the_last_step_of_an_epoch_begins_in_the_next() -> None:
    status = OverrideStatus(id="a", number=1, layers=("*",), until=None, orders_version=1)
    acks = (Ack(rank=0, step=9, digest="d"),)
    first = transitions.acknowledge(status, switched(1, acks))
    report = SwitchReport(epoch=4, step=9, world_size=1, digest="d", override_ids=("a",), acks=acks)
    again = transitions.acknowledge(first, report)
    assert (again.epoch, again.step) == (4, 9)
