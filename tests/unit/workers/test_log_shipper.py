"""Log lines on their way out."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from accordion_workers.hub import log_shipper as telemetry_module
from accordion_workers.hub.log_shipper import (
    BATCH_BYTES,
    BUFFER_BYTES,
    LINE_BYTES,
    LogShipper,
    LogSource,
    capture_output,
)
from tests.unit.workers.world import JOB, FakeCluster

LONG_S = 20.0


@pytest.fixture
def shipper(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogShipper]:
    """Not started yet."""
    monkeypatch.setattr(telemetry_module, "BATCH_PAUSE_S", 0.01)
    made = LogShipper(LogSource(job_id=JOB, attempt=2, rank=1), cluster, lambda: 7.0)
    yield made
    made.close()


def texts(cluster: FakeCluster) -> list[str]:
    return [line.text for line in cluster.drain().logs]


def test_lines_arrive_with_their_source_and_time(shipper: LogShipper, cluster: FakeCluster) -> None:
    shipper.start()
    shipper.write("one\ntwo")
    assert shipper.flush(LONG_S)
    logs = cluster.drain().logs
    assert [(line.text, line.attempt, line.rank, line.time) for line in logs] == [
        ("one", 2, 1, 7.0),
        ("two", 2, 1, 7.0),
    ]


@pytest.mark.parametrize("text", ["x" * 1000, "ü" * 1000])
def test_lines_leave_in_batches_of_limited_size(
    shipper: LogShipper, cluster, monkeypatch, text: str
) -> None:
    sizes: list[int] = []

    async def log(job_id: str, lines, dropped: int) -> None:
        sizes.append(sum(len(line.text.encode()) for line in lines))

    monkeypatch.setattr(cluster.actor, "log", log)
    for _ in range(200):
        shipper.write(text)
    shipper.start()
    assert shipper.flush(LONG_S)
    assert sum(sizes) == 200 * len(text.encode())
    assert max(sizes) <= BATCH_BYTES


@pytest.mark.parametrize("text", ["x" * 999, "ü" * 500, ""])
def test_lines_that_come_too_fast_are_dropped_and_counted(
    shipper: LogShipper, cluster, monkeypatch, text: str
) -> None:
    counts = {"lines": 0, "dropped": 0}

    async def log(job_id: str, lines, dropped: int) -> None:
        counts["lines"] += len(lines)
        counts["dropped"] += dropped

    monkeypatch.setattr(cluster.actor, "log", log)
    written = BUFFER_BYTES // 50
    for _ in range(written):
        shipper.write(text)
    shipper.start()
    assert shipper.flush(LONG_S)
    assert counts["dropped"] > 0
    assert counts["lines"] + counts["dropped"] == written


def test_lines_lost_on_the_way_are_counted_with_the_next_batch(
    shipper: LogShipper, cluster: FakeCluster
) -> None:
    cluster.silent = {"log"}
    shipper.start()
    shipper.write("one\ntwo")
    assert shipper.flush(LONG_S)
    cluster.silent = set()
    shipper.write("three")
    assert shipper.flush(LONG_S)
    drained = cluster.drain()
    assert ([line.text for line in drained.logs], drained.logs_dropped) == (["three"], 2)


def test_the_rest_of_a_long_line_is_cut(shipper: LogShipper, cluster: FakeCluster) -> None:
    shipper.start()
    shipper.write("ü" * LINE_BYTES)
    assert shipper.flush(LONG_S)
    assert texts(cluster) == ["ü" * (LINE_BYTES // 2)]


def test_text_that_is_no_unicode_travels_with_question_marks(
    shipper: LogShipper, cluster: FakeCluster
) -> None:
    shipper.start()
    shipper.write("file \udcff is missing")
    assert shipper.flush(LONG_S)
    assert texts(cluster) == ["file \ufffd is missing"]


def test_what_is_not_sent_yet_does_not_keep_a_process_from_closing(shipper: LogShipper) -> None:
    shipper.write("one")
    assert not shipper.flush(0.0)
    shipper.close()


def test_prints_and_log_records_of_all_threads_are_captured_inside_the_block_only() -> None:
    lines: list[str] = []
    with capture_output(lines.append):
        print("out")
        print("err", file=sys.stderr)
        logging.getLogger("task").info("logged")
        thread = threading.Thread(target=lambda: print("thread"))
        thread.start()
        thread.join()
    print("after")
    logging.getLogger("task").warning("after")
    assert lines == ["out", "err", "INFO task: logged", "thread"]


def test_a_last_line_without_an_end_is_captured() -> None:
    lines: list[str] = []
    with capture_output(lines.append):
        print("half", end="")
        print(" a line")
        print("no end", end="")
    assert lines == ["half a line", "no end"]


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        (["\rstep 1", "\rstep 2", "\rstep 3\n"], ["step 1", "step 3"]),
        (["step 1\r", "\r", "step 2", "\r", "\n", "done\n"], ["step 1", "step 2", "done"]),
        (["one\r\ntwo\r", "\nthree\n"], ["one", "two", "three"]),
        (["one\n\ntwo\n", "\n"], ["one", "", "two", ""]),
        (["x" * LINE_BYTES, "y", "\n", "next\n"], ["x" * LINE_BYTES + "y", "next"]),
    ],
)
def test_a_line_ends_where_it_is_overwritten_or_grows_too_long(
    writes: list[str], expected: list[str]
) -> None:
    lines: list[str] = []
    with capture_output(lines.append):
        for text in writes:
            sys.stdout.write(text)
        assert lines == expected


def test_text_that_no_newline_ends_is_not_kept() -> None:
    lines: list[str] = []
    with capture_output(lines.append):
        for _ in range(3 * LINE_BYTES):
            sys.stdout.write(".")
        held = 3 * LINE_BYTES - sum(map(len, lines))
    assert held <= LINE_BYTES


def test_a_progress_bar_is_a_line_in_ten_seconds_and_its_end(monkeypatch) -> None:
    now, lines = [0.0], list[str]()
    monkeypatch.setattr(telemetry_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with capture_output(lines.append):
        for percent in range(101):
            sys.stderr.write(f"\r{percent} %")
            now[0] += 0.25
        sys.stderr.write("\n")
        print("saved")
    assert lines == ["0 %", "40 %", "80 %", "100 %", "saved"]


def test_an_unexpected_error_is_printed_to_stderr_and_does_not_stop_the_sending(
    shipper: LogShipper,
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    takes = cluster.actor.log
    monkeypatch.setattr(cluster.actor, "log", None)
    shipper.start()
    shipper.write("one\ntwo")
    assert shipper.flush(LONG_S)
    monkeypatch.setattr(cluster.actor, "log", takes)
    shipper.write("three")
    assert shipper.flush(LONG_S)
    drained = cluster.drain()
    assert ([line.text for line in drained.logs], drained.logs_dropped) == (["three"], 2)
    assert "TypeError" in capfd.readouterr().err


def test_what_is_captured_is_still_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with capture_output(lambda _: None):
        print("out")
    assert capsys.readouterr().out == "out\n"
