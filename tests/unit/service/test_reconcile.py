"""Next action on one job: every status against every observation of the cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion_service.domain.jobs.actions import (
    Finish,
    Follow,
    MarkLost,
    Pause,
    Remove,
    Requeue,
    StartAttempt,
    Wait,
)
from accordion_service.domain.jobs.reconcile import ObservedJob, ObservedSupervisor, next_action
from accordion_service.domain.jobs.status_table import ENDED, HELD
from accordion_service.domain.jobs.statuses import Reason, Status

LIVING = st.sampled_from(sorted(set(Status) - ENDED))
SUPERVISORS = st.none() | st.builds(
    ObservedSupervisor,
    attempt=st.integers(1, 3),
    phase=st.sampled_from(["starting", "running", "ended"]),
)
HERE = ObservedSupervisor(attempt=2, phase="running")
UNPLACED = replace(HERE, unplaced=1)


def seen(status: Status, deadline: float | None = None) -> ObservedJob:
    return ObservedJob(status=status, attempt=2, deadline=deadline)


@given(LIVING, SUPERVISORS, st.booleans(), st.none() | st.floats(0, 100))
def test_two_attempts_are_never_followed_or_launched_beside_each_other(
    status: Status, supervisor: ObservedSupervisor | None, has_ended: bool, deadline: float | None
) -> None:
    action = next_action(seen(status, deadline), supervisor, has_ended=has_ended, now=50.0)
    assert not isinstance(action, StartAttempt) or supervisor is None
    assert not isinstance(action, Follow) or (supervisor is not None and supervisor.attempt == 2)


@given(LIVING, SUPERVISORS)
def test_an_end_file_ends_every_job_that_was_started(
    status: Status, supervisor: ObservedSupervisor | None
) -> None:
    action = next_action(seen(status), supervisor, has_ended=True, now=0.0)
    assert isinstance(action, Finish) == (status not in HELD)


@pytest.mark.parametrize(
    ("status", "deadline", "supervisor", "expected"),
    [
        (Status.QUEUED, None, None, Wait),
        (Status.QUEUED, None, HERE, Remove),
        (Status.STARTING, 60.0, None, StartAttempt),
        (Status.STARTING, 60.0, HERE, Follow),
        (Status.STARTING, 50.0, HERE, MarkLost),
        (Status.STARTING, 50.0, None, MarkLost),
        (Status.STARTING, 50.0, UNPLACED, Requeue),
        (Status.STARTING, 60.0, UNPLACED, Follow),
        (Status.RUNNING, None, UNPLACED, Follow),
        (Status.RUNNING, None, HERE, Follow),
        (Status.RUNNING, 50.0, HERE, Follow),
        (Status.RUNNING, None, None, MarkLost),
        (Status.RUNNING, None, ObservedSupervisor(attempt=1, phase="running"), Remove),
        (Status.RECOVERING, None, None, MarkLost),
        (Status.PAUSED, None, None, Wait),
        (Status.PAUSED, None, HERE, Remove),
        (Status.RESIZING, None, HERE, Follow),
        (Status.RESIZING, None, None, MarkLost),
        (Status.PAUSING, 60.0, HERE, Follow),
        (Status.PAUSING, 50.0, HERE, Remove),
        (Status.PAUSING, 60.0, None, Pause),
        (Status.STOPPING, 60.0, HERE, Follow),
        (Status.STOPPING, 50.0, HERE, Remove),
        (Status.STOPPING, 60.0, None, Finish),
    ],
)
def test_each_case_has_its_action(
    status: Status, deadline: float | None, *, supervisor: ObservedSupervisor | None, expected: type
) -> None:
    is_missing = replace(seen(status, deadline), is_missing=True)
    assert isinstance(next_action(is_missing, supervisor, has_ended=False, now=50.0), expected)


OUT_OF_SIGHT = [Status.RUNNING, Status.RESIZING, Status.RECOVERING, Status.PAUSING, Status.STOPPING]


@pytest.mark.parametrize("status", OUT_OF_SIGHT)
def test_a_supervisor_that_is_out_of_sight_is_waited_for(status: Status) -> None:
    assert next_action(seen(status), None, has_ended=False, now=50.0) == Wait()


def test_a_start_that_took_too_long_is_given_up() -> None:
    action = next_action(seen(Status.STARTING, 10.0), HERE, has_ended=False, now=50.0)
    assert isinstance(action, MarkLost)
    assert action.reason is Reason.START_TIMED_OUT
