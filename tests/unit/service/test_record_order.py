"""What a report has of one job is stored in the order in which it happened."""

from __future__ import annotations

import pytest

from accordion_service.store.engine.database import Database
from accordion_workers.records.contract import Drained, LogLine
from tests.unit.service.reported_row import Row, epoch, progress, started


@pytest.fixture
def row(database: Database) -> Row:
    return Row(database)


def test_records_that_waited_count_before_the_newer_progress_that_comes_with_them(
    row: Row,
) -> None:
    made = row.override(until=2)
    waited = (row.record(epoch(0, 9)), row.record(row.confirm(made)))
    row.take(Drained(records=waited, progress=progress(2, 5, epoch=6, step=50)))
    states = [event.data["state"] for event in row.events("override")]
    assert states[-2:] == ["APPLIED", "EXPIRED"]


def test_progress_of_a_group_that_was_lost_since_ends_no_override(row: Row) -> None:
    made = row.override(until=2)
    row.report(row.confirm(made))
    again = row.record(started("recovery"), generation=6)
    row.take(Drained(records=(again,), progress=progress(2, 5, epoch=6, step=50)))
    assert row.override_state(made) == "DELIVERED"


def test_events_of_records_that_come_with_output_keep_their_times(row: Row) -> None:
    waited = [row.record(epoch(number, 9 * number), time=1.0 + number / 4) for number in range(3)]
    line = LogLine(attempt=2, rank=0, time=1.9, text="x")
    row.take(Drained(records=tuple(waited), logs=(line,)))
    assert [event.time for event in row.events("epoch")] == [1.0, 1.25, 1.5]
    assert [event.time for event in row.events("log")] == [2.0]
