"""Output that is not in the database yet."""

from __future__ import annotations

from accordion_service.scheduler.pending_logs import PendingLogs
from accordion_workers.records.contract import Drained, LogLine

LINE = LogLine(attempt=1, rank=0, time=1.0, text="line")


def test_output_of_a_write_that_surely_failed_is_kept() -> None:
    kept = PendingLogs()
    kept.add("job", Drained(logs=(LINE,)))
    kept.note_write("job", 5)
    kept.drop_notes(["job"])
    kept.settle("job", 6)
    assert kept.get("job").logs == (LINE,)


def test_output_of_a_write_that_seemed_to_fail_is_settled() -> None:
    kept = PendingLogs()
    kept.add("job", Drained(logs=(LINE,)))
    kept.note_write("job", 5)
    kept.settle("job", 5)
    assert kept.get("job").logs == (LINE,)
    kept.note_write("job", 5)
    kept.settle("job", 6)
    assert kept.get("job").logs == ()
