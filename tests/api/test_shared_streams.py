"""Streams share what they read: watchers cost no queries of their own, and a slow one holds up
nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from accordion_service.store.reads.jobs import JobReads
from tests.api.conftest import Live, serve_live
from tests.api.test_streams import JOBS, frames, numbers, read, submit

KEEPALIVE_S = 1.0
NUM_OTHERS = 16


@pytest.fixture
def waiting(tmp_path: Path, database_url: str) -> Iterator[Live]:
    """A service whose jobs never begin to train, and so have no news."""
    service = serve_live(tmp_path, database_url=database_url, sse_keepalive_s=KEEPALIVE_S)
    live = next(service)
    live.runtime.slow_start = 1_000_000
    yield live
    next(service, None)


@pytest.mark.parametrize("stream", ["events", "logs?follow=true"])
def test_queries_do_not_grow_with_the_number_of_watchers(waiting: Live, stream: str) -> None:
    with waiting.client() as client:
        path = f"{JOBS}/{submit(client)}/{stream}"
        alone = count_until_keepalive(waiting, path, num_others=0)
        together = count_until_keepalive(waiting, path, num_others=NUM_OTHERS)
    assert alone > 0, "no statement was counted: the api's threads may have another name"
    # A watcher of its own would make 17 times as many; a loaded machine polls less often at times.
    assert together < NUM_OTHERS / 2 * alone, (
        f"{alone} queries for a watcher alone, {together} beside {NUM_OTHERS} others"
    )


def count_until_keepalive(live: Live, path: str, *, num_others: int) -> int:
    """Statements of the api from the opening of a stream to its first keepalive, beside other
    streams.
    """
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if threading.current_thread().name == "AnyIO worker thread":
            statements.append(statement)

    with live.client() as client, ExitStack() as streams:
        for _ in range(num_others):
            streams.enter_context(client.stream("GET", path))
        event.listen(Engine, "before_cursor_execute", note)
        answer = streams.enter_context(client.stream("GET", path))
        assert ": keep-alive" in answer.iter_lines()
        event.remove(Engine, "before_cursor_execute", note)
    return len(statements)


def test_slow_watcher_delays_no_other_and_misses_nothing(live: Live) -> None:
    with live.client() as client:
        path = f"{JOBS}/{submit(client, training={'epochs': 60})}/events"
        with client.stream("GET", path) as slow:
            fast = numbers(read(client, path))
            assert numbers(list(frames(slow.iter_lines()))) == fast == list(range(1, len(fast) + 1))


def test_stream_that_falls_behind_the_kept_frames_misses_nothing(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accordion_service.api.feeds.MAX_FEED_CHARS", 300)
    with live.client() as client:
        path = f"{JOBS}/{submit(client, training={'epochs': 20})}/events"
        with client.stream("GET", path) as beside:
            found = numbers(read(client, path))
            assert (
                found
                == list(range(1, len(found) + 1))
                == numbers(list(frames(beside.iter_lines())))
            )


def test_streams_end_without_an_end_event_if_the_database_fails(
    waiting: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("SELECT", None, Exception("disk I/O error"))

    with waiting.client() as client:
        path = f"{JOBS}/{submit(client)}/events"
        with client.stream("GET", path) as answer:
            lines = frames(answer.iter_lines())
            next(lines)
            monkeypatch.setattr(JobReads, "versions", fail)
            assert [fields for fields in lines if fields["event"] == "end"] == []
            monkeypatch.undo()
        assert numbers(read(client, path, stop_after=1)) == [1]
