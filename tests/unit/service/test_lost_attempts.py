"""What an attempt repeats that follows one that was lost, as the service counts it."""

from __future__ import annotations

from typing import Any

import pytest

from accordion_service.domain.jobs.statuses import Reason
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import AttemptRow
from accordion_workers.records.contract import Drained, FailureRecord
from tests.unit.service.reported_row import Row, decision, progress, started

FAILURE = FailureRecord(cause="job", rank=0, step=130, message="ValueError: broken on purpose")


@pytest.fixture
def row(database: Database) -> Row:
    """A job at attempt 2, whose first attempt has trained 130 steps and was lost."""
    row = Row(database)
    row.set(attempt=1, world_size=0)
    row.report(started(step=0), attempt=1, generation=3)
    row.take(Drained(progress=progress(1, 3, 0.5, step=130)))
    end(row, Reason.WORKERS_LOST)
    row.set(attempt=2)
    return row


def end(row: Row, reason: Reason, number: int = 1) -> None:
    """Close an attempt of the job as the scheduler does."""
    with row.database.write() as session:
        attempt = session.get_one(AttemptRow, (row.id, number))
        attempt.reason, attempt.ended_at = reason.value, 0.9


def counted(row: Row) -> tuple[int, float, dict[str, int]]:
    tally: dict[str, Any] = row.job.tally
    return (tally["steps_rolled_back"], tally["seconds_lost"], tally["recoveries"])


@pytest.mark.parametrize(("step", "repeated"), [(0, 130), (80, 50), (130, 0)])
def test_the_steps_since_the_checkpoint_are_counted_once(
    row: Row, step: int, repeated: int
) -> None:
    row.report(started(step=step), time=2.0)
    assert counted(row) == (repeated, 1.5, {"infrastructure": 1})
    assert row.history.attempts(row.id)[1].tally == row.job.tally
    row.report(started("recovery", step=step), generation=6)
    assert counted(row)[:2] == (repeated, 1.5)


def test_the_job_says_how_many_steps_are_trained_again(row: Row) -> None:
    row.report(started(step=80))
    assert row.job.message == "2 workers train, 50 steps trained again"
    newest = row.events("workers")[-1].data
    assert (newest["cause"], newest["why"]) == ("start", "infrastructure")
    assert newest["steps_rolled_back"] == 50


def test_steps_that_only_a_decision_tells_of_are_counted(row: Row) -> None:
    row.report(decision(4, 160), attempt=1, generation=3)
    row.report(started(step=80))
    assert counted(row)[0] == 80


def test_progress_that_comes_with_the_start_of_the_next_attempt_is_told_apart(row: Row) -> None:
    begun = row.record(started(step=80))
    row.take(Drained(records=(begun,), progress=progress(2, 5, step=81)))
    assert counted(row)[0] == 50


@pytest.mark.parametrize(
    "reason", [Reason.PAUSED_BY_USER, Reason.PREEMPTED, Reason.SERVICE_STOPPED, Reason.TASK_RAISED]
)
def test_an_attempt_after_one_that_was_not_lost_repeats_nothing(row: Row, reason: Reason) -> None:
    end(row, reason)
    row.report(started(step=80))
    assert counted(row) == (0, 0.0, {})


def test_a_retry_by_a_user_repeats_nothing(row: Row) -> None:
    row.set(retried_attempt=1)
    row.report(started(step=80))
    assert counted(row) == (0, 0.0, {})


def test_an_attempt_that_never_trained_hides_no_loss_before_it(row: Row) -> None:
    with row.database.write() as session:
        where = {"job_id": row.id, "number": 3, "workers": 2, "reason": "TRAINING"}
        session.add(AttemptRow(**where, created_at=1.0))
    end(row, Reason.NOT_PLACED, 2)
    row.set(attempt=3)
    row.report(started(step=80), attempt=3)
    assert counted(row)[0] == 50


def test_the_time_that_a_user_paused_a_lost_job_is_not_lost(row: Row) -> None:
    row.set(queued_at=1.75)
    row.report(started(step=80), time=2.0)
    assert counted(row)[:2] == (50, 0.25)


def test_a_group_whose_successor_needed_another_attempt_has_its_own_cause(row: Row) -> None:
    row.set(attempt=1)
    row.report(FAILURE, attempt=1, generation=4)
    end(row, Reason.NOT_PLACED)
    row.set(attempt=2)
    row.report(started(step=80))
    assert counted(row)[::2] == (50, {"job": 1})
