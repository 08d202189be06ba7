"""How long a guest run has been silent, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from accordion_service.domain.jobs.actions import Follow
from accordion_service.domain.jobs.guests import (
    CloseGuest,
    MarkGuestLost,
    MarkGuestStalled,
    ObservedGuest,
    SilenceLimits,
    SilenceTimer,
    name_guest,
    next_guest_action,
)
from accordion_service.domain.jobs.statuses import Reason, Status

LIMITS = SilenceLimits(lost_s=60.0, closed_s=3600.0)
SEEN = {"reason": Reason.TRAINING, "idle_s": 0.0, "is_overdue": False}


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        ({"status": Status.RUNNING, "silent_s": 59.9}, Follow),
        ({"status": Status.RUNNING, "silent_s": 60.0}, MarkGuestLost),
        ({"status": Status.RECOVERING, "silent_s": 4000.0}, MarkGuestLost),
        ({"status": Status.RUNNING, "silent_s": 1.0, "idle_s": 59.9}, Follow),
        ({"status": Status.RUNNING, "silent_s": 1.0, "idle_s": 60.0}, MarkGuestStalled),
        ({"status": Status.RECOVERING, "silent_s": 1.0, "idle_s": 60.0}, Follow),
        ({"status": Status.LOST, "silent_s": 4000.0}, Follow),
        ({"status": Status.LOST, "silent_s": 60.0, "is_overdue": True}, CloseGuest),
        ({"status": Status.LOST, "silent_s": 59.0, "is_overdue": True}, Follow),
    ],
)
def test_action_follows_from_state_and_silence(seen: dict[str, Any], action: type) -> None:
    assert type(next_guest_action(ObservedGuest(**{**SEEN, **seen}), LIMITS)) is action


def test_run_that_is_shown_as_stalled_is_not_written_again() -> None:
    stalled = {**SEEN, "status": Status.RUNNING, "reason": Reason.NO_STEPS, "idle_s": 4000.0}
    assert next_guest_action(ObservedGuest(**stalled, silent_s=1.0), LIMITS) == Follow()


def count(*turns: tuple[float, bool, float | None]) -> float:
    """Silence after turns of (time, responded, seconds since the cluster last heard of the run)."""
    timer = SilenceTimer(longest_turn_s=3.0)
    return [
        timer.update("a", responded=responded, at_most_s=at_most_s, now=now)
        for now, responded, at_most_s in turns
    ][-1]


def test_silence_adds_up_from_turn_to_turn_and_news_end_it() -> None:
    quiet = [(float(second), True, None) for second in range(5)]
    assert count(*quiet) == 4.0
    assert count(*quiet, (5.0, True, 0.0)) == 0.0
    assert count(*quiet, (5.0, True, 0.0), (6.0, True, None)) == 1.0


def test_run_is_silent_for_no_longer_than_the_cluster_says() -> None:
    quiet = [(float(second), True, None) for second in range(5)]
    assert count(*quiet, (5.0, True, 1.5)) == 1.5
    assert count(*quiet, (5.0, True, 100.0)) == 5.0


@pytest.mark.parametrize("away", [[(1.0, False, None), (2.0, False, None)], []])
def test_time_without_a_scheduler_is_no_silence(
    away: list[tuple[float, bool, float | None]],
) -> None:
    assert count((0.0, True, None), *away, (100.0, True, None), (101.0, True, None)) == 1.0


def test_name_that_is_taken_gets_part_of_the_id_and_stays_within_the_limit() -> None:
    job_id = "0190d1b2-0000-7000-8000-0000deadbeef"
    assert name_guest("digits", job_id, {"other"}) == "digits"
    assert name_guest("digits", job_id, {"digits"}) == "digits-adbeef"
    assert len(name_guest("d" * 63, job_id, {"d" * 63})) == 63
