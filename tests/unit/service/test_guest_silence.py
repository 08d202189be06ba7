"""How long a guest run has been silent, and what follows from it."""

from __future__ import annotations

import pytest

from service.domain.actions import Follow
from service.domain.guests import Close, MarkLost, Silence, SilenceLimits, name_guest, next_guest_action
from service.domain.jobs import Status

LIMITS = SilenceLimits(lost_s=60.0, closed_s=3600.0)


@pytest.mark.parametrize(
    ("status", "silent_s", "action"),
    [
        (Status.RUNNING, 59.9, Follow),
        (Status.RUNNING, 60.0, MarkLost),
        (Status.RECOVERING, 4000.0, MarkLost),
        (Status.LOST, 3599.0, Follow),
        (Status.LOST, 3600.0, Close),
    ],
)
def test_action_follows_from_state_and_silence(status: Status, silent_s: float, action: type) -> None:
    assert type(next_guest_action(status, silent_s, LIMITS)) is action


def count(*turns: tuple[float, bool, bool]) -> float:
    """Silence after turns of (time, answered, heard)."""
    silence = Silence(longest_turn_s=3.0)
    return [silence.note_turn("a", answered=answered, heard=heard, now=now) for now, answered, heard in turns][-1]


def test_silence_adds_up_from_turn_to_turn_and_a_report_ends_it() -> None:
    quiet = [(float(second), True, False) for second in range(5)]
    assert count(*quiet) == 4.0
    assert count(*quiet, (5.0, True, True)) == 0.0
    assert count(*quiet, (5.0, True, True), (6.0, True, False)) == 1.0


@pytest.mark.parametrize("away", [[(1.0, False, False), (2.0, False, False)], []])
def test_time_in_which_nobody_listened_is_no_silence(away: list[tuple[float, bool, bool]]) -> None:
    assert count((0.0, True, False), *away, (100.0, True, False), (101.0, True, False)) == 1.0


def test_name_that_is_taken_gets_part_of_the_id_and_stays_within_the_limit() -> None:
    job_id = "0190d1b2-0000-7000-8000-0000deadbeef"
    assert name_guest("digits", job_id, {"other"}) == "digits"
    assert name_guest("digits", job_id, {"digits"}) == "digits-adbeef"
    assert len(name_guest("d" * 63, job_id, {"d" * 63})) == 63
