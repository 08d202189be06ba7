"""The table of a job's states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.jobs import ENDED, STEPS, Desired, Reason, Status, is_transition_allowed
from workers.contract import EndReason


def reachable(start: Status) -> set[Status]:
    found, edge = {start}, {start}
    while edge:
        edge = {new for old in edge for new in STEPS[old]} - found
        found |= edge
    return found


def test_every_state_is_reached_from_the_queue_and_reaches_every_end() -> None:
    assert reachable(Status.QUEUED) == set(Status)
    assert all(
        reachable(status) >= ENDED - {Status.FAILED, Status.SUCCEEDED}
        for status in set(Status) - ENDED
    )


@given(st.sampled_from(sorted(ENDED)), st.sampled_from(Status))
def test_an_ended_job_never_goes_anywhere(ended: Status, other: Status) -> None:
    assert not is_transition_allowed(ended, other)


def test_a_stopping_job_only_ends() -> None:
    assert STEPS[Status.STOPPING] == ENDED


def test_a_paused_job_goes_on_only_through_the_queue() -> None:
    assert STEPS[Status.PAUSED] == {Status.QUEUED, Status.CANCELLED}
    assert {old for old in Status if is_transition_allowed(old, Status.PAUSED)} == {
        Status.QUEUED,
        Status.PAUSING,
    }


@pytest.mark.parametrize(
    ("status", "before"),
    [
        (Status.STARTING, {Status.QUEUED}),
        (Status.RUNNING, {Status.LOST, Status.STARTING, Status.RESIZING, Status.RECOVERING}),
        (Status.RESIZING, {Status.RUNNING}),
        (Status.RECOVERING, {Status.STARTING, Status.RUNNING, Status.RESIZING}),
        (Status.PAUSING, {Status.STARTING, Status.RUNNING, Status.RESIZING, Status.RECOVERING}),
        (Status.SUCCEEDED, set(Status) - ENDED - {Status.QUEUED, Status.PAUSED}),
    ],
)
def test_a_state_is_entered_only_from_where_it_makes_sense(
    status: Status, before: set[Status]
) -> None:
    assert {old for old in Status if is_transition_allowed(old, status)} == before


def test_every_reason_that_workers_give_for_an_end_is_known() -> None:
    assert set(EndReason.__args__) <= {reason.value for reason in Reason}


def test_what_people_want_is_no_state() -> None:
    assert not {desired.value for desired in Desired} & {status.value for status in Status}
