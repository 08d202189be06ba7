"""Records on their way to the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from accordion_workers.hub import record_sender
from accordion_workers.hub.journal import read_records
from accordion_workers.hub.record_sender import RecordSender
from accordion_workers.records.contract import Record
from tests.unit.workers.test_accordion_actor import progress
from tests.unit.workers.world import (
    JOB,
    FakeCluster,
    cursor_of,
    journal,
    note,
    record,
    token,
    until,
)

LONG_S = 20.0
Open = Callable[[], RecordSender]


@dataclass
class DrainedRoad:
    """An `ActorClient` whose actor is killed after the posts of these numbers, while the scheduler
    drains after every post.
    """

    cluster: FakeCluster
    kills: Sequence[int]
    received: list[Record] = field(default_factory=list)

    def __call__(self, method: str, *arguments: Any, timeout_s: float, **named: Any) -> Any:
        answer = self.cluster(method, *arguments, timeout_s=timeout_s, **named)
        if len(self.cluster.calls) in self.kills:
            self.cluster.kill_actor()
        self.received += self.cluster.drain(
            cursor_of(self.received[-1]) if self.received else None
        ).records
        return answer


@dataclass
class Faulty:
    """A function of a storage that is not there for a while."""

    function: Callable[..., Any]
    is_broken: bool = True
    failed: int = 0

    def __call__(self, *arguments: Any) -> Any:
        if self.is_broken:
            self.failed += 1
            raise OSError("not there")
        return self.function(*arguments)


@pytest.fixture
def opened(cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Starts the sender of a new generation."""
    monkeypatch.setattr(record_sender, "TICK_S", 0.01)
    made: list[RecordSender] = []

    def start() -> RecordSender:
        made.append(RecordSender(JOB, journal(tmp_path), cluster))
        made[-1].start()
        return made[-1]

    yield start
    for sender in made:
        sender.close()


def test_what_was_put_is_in_the_journal_on_return_and_soon_at_the_actor(
    opened: Open, cluster, tmp_path
) -> None:
    sender = opened()
    sender.put(note(1))
    assert [item.payload for item in read_records(tmp_path)] == [note(1)]
    assert sender.flush(LONG_S)
    assert cluster.held() == [note(1)]


def test_flush_says_when_the_actor_did_not_take_everything(
    opened: Open, cluster: FakeCluster
) -> None:
    cluster.silent = {"post"}
    sender = opened()
    sender.put(note(1))
    assert not sender.flush(0.05)


def test_a_silent_actor_gets_everything_once_it_answers(opened: Open, cluster: FakeCluster) -> None:
    sender = opened()
    cluster.deaf = {"post"}
    for number in range(5):
        sender.put(note(number))
    until(lambda: cluster.calls.count("post") > 3)
    cluster.deaf = set()
    assert sender.flush(LONG_S)
    assert cluster.held() == [note(number) for number in range(5)]


def test_an_actor_that_lost_its_memory_gets_all_that_was_not_confirmed_once_more(
    opened: Open, cluster
) -> None:
    sender = opened()
    sender.put(note(0))
    sender.put(note(1))
    assert sender.flush(LONG_S)
    cluster.drain(cursor_of(record(0)))
    posts = cluster.calls.count("post")
    until(lambda: cluster.calls.count("post") > posts + 1)
    cluster.kill_actor()
    until(lambda: cluster.held() == [note(1)])


@pytest.mark.parametrize(
    "kills", [(), (1,), (2,), (1, 2), (1, 3), tuple(range(1, 40, 3)), tuple(range(2, 40, 2))]
)
def test_no_record_is_lost_or_doubled_wherever_the_actor_is_killed(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: tuple[int, ...]
) -> None:
    monkeypatch.setattr(record_sender, "TICK_S", 0.0)
    monkeypatch.setattr(record_sender, "POST_LIMIT", 1)
    older, road = journal(tmp_path), DrainedRoad(cluster, kills)
    for number in range(6):
        older.write(note(number))
    sender = RecordSender(JOB, journal(tmp_path), road)
    sender.start()
    until(lambda: road.received and road.received[-1].seq == 5)
    sender.close()
    assert [item.payload for item in road.received] == [note(number) for number in range(6)]


def test_a_forgotten_job_gets_all_that_was_not_confirmed_once_more(
    opened: Open, cluster: FakeCluster
) -> None:
    sender = opened()
    sender.put(note(0))
    assert sender.flush(LONG_S)
    cluster.call("forget", JOB)
    sender.put(note(1))
    until(lambda: len(cluster.held()) == 2)


def test_an_error_that_nobody_expected_does_not_end_the_sending(
    opened: Open, cluster, monkeypatch
) -> None:
    posts = cluster.actor.post
    monkeypatch.setattr(cluster.actor, "post", None)
    sender = opened()
    sender.put(note(1))
    until(lambda: cluster.calls.count("post") > 1)
    monkeypatch.setattr(cluster.actor, "post", posts)
    assert sender.flush(LONG_S)


def test_confirmed_records_are_dropped(opened: Open, cluster: FakeCluster) -> None:
    sender = opened()
    for number in range(3):
        sender.put(note(number))
    assert sender.flush(LONG_S)
    assert cluster.drain(cursor_of(record(2))).records == ()
    sender.put(note(3))
    until(cluster.held)
    cluster.kill_actor()
    until(cluster.held)
    assert cluster.held() == [note(3)]


def test_a_database_that_was_restored_gets_what_it_had_confirmed_since_its_backup(
    opened: Open, cluster: FakeCluster
) -> None:
    sender = opened()
    for number in range(4):
        sender.put(note(number))
    assert sender.flush(LONG_S)
    assert cluster.drain(cursor_of(record(3))).records == ()
    sender.put_progress(progress(4))
    assert sender.flush(LONG_S)
    cluster.drain(cursor_of(record(1)))
    sender.put(note(4))
    until(lambda: cluster.held() == [note(2), note(3), note(4)])
    cluster.drain(cursor_of(record(4)))
    sender.put(note(5))
    until(lambda: cluster.held() == [note(5)])


def test_a_new_generation_delivers_what_the_one_before_could_not(
    opened: Open, cluster: FakeCluster
) -> None:
    cluster.silent = {"post"}
    opened().put(note(1))
    cluster.silent = set()
    newer = opened()
    newer.put(note(2))
    assert newer.flush(LONG_S)
    until(lambda: cluster.held() == [note(1), note(2)])


def test_a_new_generation_reads_only_what_is_not_confirmed(
    opened: Open, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, read = journal(tmp_path), []
    records = [older.write(note(number)) for number in range(3)]
    cluster.call("post", JOB, token(), [])
    cluster.drain(cursor_of(records[1]))
    monkeypatch.setattr(
        record_sender, "read_records", lambda *place: read.append(place) or read_records(*place)
    )
    assert opened().flush(LONG_S)
    assert read == [(tmp_path, cursor_of(records[1]))]
    assert cluster.held() == [note(2)]


def test_older_records_are_sent_first_though_they_cannot_be_read_at_once(
    opened: Open, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal(tmp_path).write(note(0))
    monkeypatch.setattr(record_sender, "read_records", faulty := Faulty(read_records))
    sender = opened()
    sender.put(note(1))
    until(lambda: faulty.failed > 1)
    faulty.is_broken = False
    assert sender.flush(LONG_S)
    assert cluster.held() == [note(0), note(1)]


def test_a_group_that_a_newer_one_replaced_stops_sending(
    opened: Open, cluster: FakeCluster
) -> None:
    cluster.call("post", JOB, token(99), [])
    sender = opened()
    sender.put(note(1))
    assert not sender.flush(LONG_S)
    assert sender.superseded
    assert cluster.held() == []


def test_a_long_history_travels_in_portions(opened: Open, cluster, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(record_sender, "POST_LIMIT", 2)
    older = journal(tmp_path)
    for number in range(7):
        older.write(note(number))
    assert opened().flush(LONG_S)
    assert cluster.held() == [note(number) for number in range(7)]
    assert cluster.calls.count("post") >= 4


def test_only_the_newest_progress_is_sent(opened: Open, cluster: FakeCluster) -> None:
    cluster.silent = {"post"}
    sender = opened()
    for step in range(3):
        sender.put_progress(progress(step))
    cluster.silent = set()
    assert sender.flush(LONG_S)
    assert cluster.drain().progress == progress(2)


@dataclass
class PacedRoad:
    """An `ActorClient` on which the actor is busy: it wants no other call for a long time."""

    cluster: FakeCluster

    def __call__(self, method: str, *arguments: Any, timeout_s: float, **named: Any) -> Any:
        return replace(
            self.cluster(method, *arguments, timeout_s=timeout_s, **named), pause_s=1000.0
        )


def test_a_busy_actor_is_called_again_when_it_wants_to_be_unless_somebody_waits(
    opened: Open, cluster: FakeCluster, tmp_path: Path
) -> None:
    paced_cluster = FakeCluster()
    paced = RecordSender(JOB, journal(tmp_path / "paced"), PacedRoad(paced_cluster))
    with closing(paced_cluster), closing(paced):
        paced.start()
        for sender in (paced, opened()):
            sender.put(note(1))
        until(lambda: cluster.calls.count("post") > 20)
        # the first call asks what is confirmed.
        assert paced_cluster.calls == ["post", "post"]
        paced.put(note(2))
        assert paced.flush(LONG_S)
        assert paced_cluster.held() == [note(1), note(2)]
