"""What a change of group costs a guest run, if the file of the group before is older than its
reports.
"""

from __future__ import annotations

from typing import Any

import pytest

from accordion_service.store.engine.database import Database
from accordion_workers.records.contract import Drained, FailureRecord, Started
from tests.unit.service.reported_row import RESIZE, Row, decision, epoch, progress, started

STEP_IN_FILE = 120
LOST = FailureRecord(cause="infrastructure", rank=None, step=STEP_IN_FILE, message="it was lost")


@pytest.fixture
def guest(database: Database) -> Row:
    row = Row(database)
    row.set(kind="guest")
    row.report(started(step=0), generation=5)
    return row


def resumed(step: int, **more: Any) -> Started:
    """What a group says that resumes at this step and has read the file."""
    lost = {"seconds_lost": 8.0, "steps_rolled_back": max(0, STEP_IN_FILE - step)}
    return started("recovery", epoch=2, step=step, **{**lost, **more})


def newest(row: Row) -> dict[str, Any]:
    return row.events("workers")[-1].data


def test_steps_after_the_file_was_saved_are_counted_as_trained_again(guest: Row) -> None:
    guest.take(Drained(progress=progress(2, 5, step=130)))
    guest.report(LOST, resumed(80), generation=6)
    failed, began = (event.data for event in guest.events("workers")[-2:])
    assert (failed["step"], began["steps_rolled_back"]) == (130, 50)
    assert guest.job.tally["steps_rolled_back"] == 50
    assert "50 steps trained again" in guest.job.message


def test_seconds_are_lost_from_the_newest_step_on(guest: Row) -> None:
    guest.take(Drained(progress=progress(2, 5, 0.5, step=130)))
    guest.report(resumed(80), generation=6, time=2.0)
    assert guest.job.tally["seconds_lost"] == 1.5


def test_an_epoch_that_ended_after_the_file_was_saved_is_counted(guest: Row) -> None:
    guest.take(Drained(progress=progress(2, 5, step=119)))
    guest.report(epoch(3, 160), decision(4, 160))
    guest.report(LOST, resumed(120), generation=6)
    assert newest(guest)["steps_rolled_back"] == 40


@pytest.mark.parametrize("now", [None, progress(2, 6, step=81)], ids=["no-step", "a-step"])
def test_reports_of_both_groups_that_come_at_once_are_told_apart(guest: Row, now) -> None:
    guest.take(Drained(progress=progress(2, 5, step=130)))
    parts = [(5, epoch(3, 160)), (5, decision(4, 160)), (6, LOST), (6, resumed(80))]
    records = tuple(guest.record(payload, generation=group) for group, payload in parts)
    guest.take(Drained(records=records, progress=now))
    assert newest(guest)["steps_rolled_back"] == 80


def test_an_epoch_of_the_group_before_does_not_move_the_progress_of_the_next(guest: Row) -> None:
    record = guest.record(epoch(3, 160), generation=5)
    guest.take(Drained(records=(record,), progress=progress(2, 6, step=81)))
    guest.take(Drained(progress=progress(2, 6, step=82)))
    assert guest.job.progress["step"] == 82  # type: ignore[index]


def test_a_step_is_trained_again_once_for_each_group_that_trained_it(guest: Row) -> None:
    guest.take(Drained(progress=progress(2, 5, step=130)))
    guest.report(resumed(80), generation=6)
    guest.report(resumed(80, steps_rolled_back=0), generation=7)
    assert guest.job.tally["steps_rolled_back"] == 50


def test_what_a_group_saved_last_counts_if_its_reports_are_older(guest: Row) -> None:
    guest.take(Drained(progress=progress(2, 5, step=110)))
    guest.report(LOST, resumed(80), generation=6)
    assert [event.data.get("step") for event in guest.events("workers")[-2:]] == [120, 80]
    assert newest(guest)["steps_rolled_back"] == 40


def test_a_group_that_grows_ended_at_the_newest_step(guest: Row) -> None:
    guest.take(Drained(progress=progress(2, 5, step=130)))
    guest.report(RESIZE, generation=6)
    assert newest(guest)["step"] == 130


def test_a_job_of_the_service_counts_what_its_supervisor_saw(guest: Row) -> None:
    guest.set(kind="job")
    guest.take(Drained(progress=progress(2, 5, step=130)))
    guest.report(LOST, resumed(80), generation=6)
    assert newest(guest)["steps_rolled_back"] == 40
