"""What reports of a running job change in its row: laws of the intake, one record after the
other.
"""

from __future__ import annotations

import pytest
from sqlalchemy import update

from accordion_service.domain.jobs.status_table import LEAVING
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.store.engine.database import Database
from accordion_service.store.ingest.record_ingest import has_new_data
from accordion_service.store.scheduling.end_messages import describe_pause
from accordion_service.store.tables.checkpoints import CheckpointRow
from accordion_workers.records.contract import (
    Bytes,
    Drained,
    EndRecord,
    LogLine,
    PausedRecord,
    Payload,
    Record,
)
from tests.unit.service.reported_row import (
    CHECKPOINT,
    FAILURE,
    RESIZE,
    Row,
    checkpoint,
    decision,
    epoch,
    progress,
    started,
)

WORKING = [Status.RUNNING, Status.RESIZING, Status.RECOVERING]


@pytest.fixture
def row(database: Database) -> Row:
    return Row(database)


def test_a_failure_that_ends_the_job_is_no_recovery(row: Row) -> None:
    row.report(FAILURE.model_copy(update={"final": True}))
    assert (row.job.status, row.job.failures, row.job.world_size) == (Status.RUNNING, 1, 0)


@pytest.mark.parametrize(
    "payload", [RESIZE, FAILURE, started("recovery")], ids=lambda payload: payload.kind
)
def test_what_befell_an_earlier_attempt_is_told_and_does_not_move_the_job(
    row: Row, payload: Payload
) -> None:
    before, world_size = row.state, row.job.world_size
    row.report(payload, attempt=1)
    assert (row.state, row.job.world_size) == (before, world_size)
    assert [event.data["attempt"] for event in row.events("workers")] == [1]


@pytest.mark.parametrize("status", sorted(LEAVING))
@pytest.mark.parametrize(
    "payload", [RESIZE, FAILURE, started("recovery")], ids=lambda payload: payload.kind
)
def test_nothing_that_befalls_workers_brings_a_leaving_job_back(
    row: Row, status: Status, payload: Payload
) -> None:
    row.set(status=status.value, deadline=60.0)
    before = row.state
    row.report(payload)
    assert (row.state, row.job.deadline) == (before, 60.0)


@pytest.mark.parametrize(
    "status", sorted({Status.STARTING, Status.RECOVERING, Status.PAUSING, Status.STOPPING})
)
def test_only_a_job_that_trains_is_resized(row: Row, status: Status) -> None:
    row.set(status=status.value)
    row.report(RESIZE)
    assert row.job.status == status
    assert row.events("workers")[-1].data["what"] == "resizing"


@pytest.mark.parametrize("status", [Status.RUNNING, Status.RESIZING])
@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("ordered", Reason.RESIZE_ORDERED),
        ("joined", Reason.WORKERS_JOINED),
        ("leaving", Reason.WORKERS_LEAVING),
    ],
)
def test_a_resize_has_the_reason_that_the_workers_name(
    row: Row, status: Status, *, cause: str, reason: Reason
) -> None:
    row.set(status=status.value)
    row.report(RESIZE.model_copy(update={"cause": cause}))
    assert row.state == (Status.RESIZING, reason, RESIZE.message)


@pytest.mark.parametrize("status", WORKING)
@pytest.mark.parametrize(
    ("cause", "reason"), [("job", Reason.RETRYING), ("infrastructure", Reason.WORKERS_LOST)]
)
def test_a_group_that_broke_is_recovered_from_and_counted(
    row: Row, status: Status, *, cause: str, reason: Reason
) -> None:
    row.set(status=status.value)
    row.report(FAILURE.model_copy(update={"cause": cause}))
    assert (row.job.status, row.job.reason, row.job.failures) == (Status.RECOVERING, reason, 1)
    assert (row.job.world_size, row.job.workers) == (0, 2)
    # It may be the job's end: that another group follows is for the attempt to say.
    assert row.job.message == f"the worker group ended: {FAILURE.message}"


@pytest.mark.parametrize("status", [*WORKING, Status.STARTING])
def test_a_group_that_began_trains_and_nothing_is_due_any_more(row: Row, status: Status) -> None:
    row.set(status=status.value, deadline=60.0, world_size=0)
    row.report(started(world_size=3))
    assert (row.job.status, row.job.reason, row.job.world_size, row.job.deadline) == (
        "RUNNING",
        "TRAINING",
        3,
        None,
    )
    first, second = row.history.attempts(row.id)
    assert (second.message, second.generation, second.started_at) == ("3 workers train", 5, 1.0)
    assert (first.generation, first.started_at) == (0, None)


def test_a_change_of_group_has_the_newest_cause_that_its_own_attempt_announced(row: Row) -> None:
    row.report(FAILURE, attempt=1)
    row.report(RESIZE, FAILURE.model_copy(update={"cause": "infrastructure"}))
    row.set(status="RECOVERING")
    row.report(started("recovery", seconds_lost=2.0, steps_rolled_back=3), generation=6)
    tally = row.job.tally
    assert (tally["recoveries"], tally["resizes"]) == ({"infrastructure": 1}, {})
    assert (tally["seconds_lost"], tally["steps_rolled_back"]) == (2.0, 3)
    assert row.events("workers")[-1].data["why"] == "infrastructure"


def test_another_attempts_cause_is_no_cause(row: Row) -> None:
    row.report(FAILURE, attempt=1)
    row.report(started("recovery"))
    assert row.job.tally["recoveries"] == {"unknown": 1}


def test_the_tally_of_an_attempt_holds_its_own_changes_and_the_jobs_all(row: Row) -> None:
    row.report(FAILURE, started("recovery", seconds_lost=1.0), attempt=1)
    row.report(RESIZE, started("resize", seconds_lost=0.5))
    first, second = row.history.attempts(row.id)
    assert (first.tally["recoveries"], first.tally["resizes"]) == ({"job": 1}, {})
    assert (second.tally["recoveries"], second.tally["resizes"]) == ({}, {"joined": 1})
    assert (row.job.tally["recoveries"], row.job.tally["resizes"]) == ({"job": 1}, {"joined": 1})
    assert row.job.tally["seconds_lost"] == 1.5


def test_changes_add_up(row: Row) -> None:
    for generation in (6, 7):
        row.report(FAILURE, generation=generation - 1)
        again = started("recovery", seconds_lost=1.5, steps_rolled_back=4)
        row.report(again, generation=generation)
    tally = row.job.tally
    assert (tally["recoveries"], tally["seconds_lost"], tally["steps_rolled_back"]) == (
        {"job": 2},
        3.0,
        8,
    )


def test_a_start_costs_nothing_and_is_no_change(row: Row) -> None:
    row.report(FAILURE, started())
    assert (row.job.tally["recoveries"], row.job.tally["resizes"]) == ({}, {})
    assert row.events("workers")[-1].data["why"] == "start"


def test_work_that_is_repeated_leaves_the_history_and_that_before_it_stays(row: Row) -> None:
    row.report(*[epoch(number, step) for number, step in ((0, 9), (1, 18), (2, 27))])
    row.report(*[decision(number, step) for number, step in ((0, 0), (1, 9), (2, 18))])
    row.report(started("recovery", epoch=2, step=18), generation=6)
    assert [kept.epoch for kept in row.history.epochs(row.id)] == [0, 1]
    assert [kept.step for kept in row.history.decisions(row.id)] == [0, 9, 18]
    row.report(started("recovery", epoch=1, step=9), generation=7)
    assert [kept.epoch for kept in row.history.epochs(row.id)] == [0]
    assert [kept.step for kept in row.history.decisions(row.id)] == [0, 9]


@pytest.mark.parametrize("at_once", [False, True], ids=["one-by-one", "at-once"])
def test_checkpoints_after_the_one_that_a_group_resumed_from_are_no_longer_listed(
    row: Row, *, at_once: bool
) -> None:
    # The one at step 30 cannot be read; the next group passes it without saving one before it.
    reports = [
        (5, checkpoint(10), checkpoint(30)),
        (6, started("recovery", epoch=1, step=10), checkpoint(40)),
    ]
    records = [row.record(one, generation=group) for group, *rest in reports for one in rest]
    for part in [records] if at_once else [[one] for one in records]:
        row.take(Drained(records=tuple(part)))
    assert [kept.step for kept in row.history.checkpoints(row.id)] == [10, 40]
    assert [event.data["step"] for event in row.events("checkpoint")] == [10, 30, 40]


def test_a_group_that_remembers_its_round_is_said_to_go_on_from_there(row: Row) -> None:
    resumed = {"resumed_from": "g1-e0-s9", "previous_world_size": 3, "steps_rolled_back": 4}
    row.report(started("recovery", from_memory=True, **resumed))
    assert row.job.message == (
        "2 workers train, recovered from 3 with 0.0 s lost, from the newest round that its workers"
        " remember, 4 steps trained again"
    )


def test_a_group_keeps_what_it_reported_itself(row: Row) -> None:
    row.report(epoch(0, 9), decision(1, 9), started("recovery"))
    assert len(row.history.epochs(row.id)) == len(row.history.decisions(row.id)) == 1


def test_an_epoch_that_ended_moves_the_progress_on_and_never_back(row: Row) -> None:
    row.take(Drained(progress=progress(2, 5, step=12)))
    row.report(epoch(0, 9))
    assert row.job.progress["step"] == 12  # type: ignore[index]
    row.report(epoch(1, 18))
    assert (row.job.progress["epoch"], row.job.progress["step"]) == (2, 18)  # type: ignore[index]
    assert row.job.metrics == {"accuracy": 0.5}


def test_the_metrics_are_those_of_the_newest_evaluation(row: Row) -> None:
    row.report(epoch(0, 9), epoch(1, 18).model_copy(update={"metrics": {}}))
    assert row.job.metrics == {"accuracy": 0.5}


def test_an_epoch_that_ended_tells_its_own_loss_and_not_that_of_some_steps(row: Row) -> None:
    row.take(Drained(progress=progress(2, 5, step=18, loss=0.3)))
    row.report(epoch(1, 18))
    assert row.job.progress["loss"] == 1.0  # type: ignore[index]


def test_the_last_progress_is_taken_with_the_end_that_comes_with_it(row: Row) -> None:
    row.report(started())
    end = EndRecord(status="SUCCEEDED", reason="COMPLETED")
    records = tuple(
        Record(attempt=2, generation=generation, seq=9, time=3.0, payload=payload)
        for generation, payload in ((5, epoch(3, 36)), (6, end))
    )
    row.take(
        Drained(records=records, progress=progress(2, 5, step=36, loss=0.3, bytes=Bytes(payload=7)))
    )
    last = row.job.progress
    assert last is not None
    assert (last["step"], last["loss"], last["bytes"]["payload"]) == (36, 1.0, 7)


@pytest.mark.parametrize("how", ["progress", "epoch"])
def test_an_override_is_over_when_its_last_epoch_is(row: Row, how: str) -> None:
    made = row.override(until=2)
    row.take(Drained(progress=progress(2, 5, epoch=1)))
    assert row.override_state(made) == "PENDING"
    if how == "progress":
        row.take(Drained(progress=progress(2, 5, 10.0, epoch=2)))
    else:
        row.report(epoch(0, 9))
        assert row.override_state(made) == "PENDING"
        row.report(epoch(1, 18))
    assert row.override_state(made) == "EXPIRED"


def test_the_first_start_of_all_is_when_the_job_began(row: Row) -> None:
    row.report(started())
    row.report(started("recovery"), generation=6, time=7.0)
    assert (row.job.started_at, row.history.attempts(row.id)[1].started_at) == (1.0, 1.0)


def test_a_record_that_the_cursor_has_passed_changes_nothing(row: Row) -> None:
    row.report(FAILURE)
    again = Record(attempt=2, generation=5, seq=1, time=1.0, payload=FAILURE)
    older = Record(attempt=2, generation=4, seq=99, time=1.0, payload=FAILURE)
    row.take(Drained(records=(older, again)))
    assert (row.job.failures, len(row.events("workers"))) == (1, 1)


def test_a_checkpoint_that_is_saved_again_is_no_longer_removed(row: Row) -> None:
    """Retention removes checkpoints of ended jobs, and a retried job saves them again."""
    row.report(CHECKPOINT)
    with row.database.write() as session:
        session.execute(update(CheckpointRow).values(removed_at=1.5))
    row.report(CHECKPOINT, generation=6)
    [saved] = row.history.checkpoints(row.id)
    assert (saved.generation, saved.removed_at) == (6, None)


def test_a_checkpoint_ends_a_row_of_losses(row: Row) -> None:
    row.set(lost_attempts=4)
    row.report(started("recovery"), FAILURE)
    assert row.job.lost_attempts == 4
    row.report(CHECKPOINT)
    assert row.job.lost_attempts == 0


def test_progress_of_a_group_before_the_newest_record_is_dropped(row: Row) -> None:
    row.report(started())
    row.take(Drained(progress=progress(2, 4)))
    assert row.job.progress is None
    row.take(Drained(progress=progress(2, 5)))
    assert row.job.progress is not None


@pytest.mark.parametrize(
    ("attempt", "generation", "time"), [(1, 6, 20.0), (2, 4, 20.0), (2, 5, 9.0)]
)
def test_older_progress_is_no_news_and_changes_nothing(
    row: Row, attempt: int, generation: int, time: float
) -> None:
    row.take(Drained(progress=progress(2, 5, step=7)))
    late = Drained(progress=progress(attempt, generation, time, step=2))
    assert not has_new_data(row.job, late)
    row.take(late)
    assert row.job.progress["step"] == 7  # type: ignore[index]


@pytest.mark.parametrize("newer", [(3, 1, 1.0), (2, 6, 1.0), (2, 5, 9.5)])
def test_newer_progress_is_news(row: Row, newer: tuple[int, int, float]) -> None:
    row.take(Drained(progress=progress(2, 5)))
    assert has_new_data(row.job, Drained(progress=progress(*newer)))


def test_lines_and_lost_lines_are_kept_and_nothing_is_kept_of_nothing(row: Row) -> None:
    row.take(Drained())
    row.take(Drained(logs_dropped=3))
    row.take(Drained(logs=(LogLine(attempt=2, rank=0, time=1.0, text="x"),)))
    assert [
        (chunk.number, len(chunk.lines), chunk.dropped) for chunk in row.history.logs(row.id)
    ] == [
        (1, 0, 3),
        (2, 1, 0),
    ]
    assert [event.data["number"] for event in row.events("log")] == [1, 2]
    assert has_new_data(row.job, Drained(logs_dropped=1))
    assert not has_new_data(row.job, Drained())


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        (0, "paused before its first checkpoint"),
        (3, "paused after 5 steps; its newest checkpoint has 3 of them"),
        (5, "paused; its state is saved"),
    ],
)
def test_a_paused_job_says_how_much_of_it_is_saved(saved: int, told: str) -> None:
    paused = PausedRecord(step=5, saved_step=saved)
    record = Record(attempt=1, generation=1, seq=0, time=0.0, payload=paused)
    assert describe_pause(Drained(records=(record,))).startswith(told)
