"""Loggers of jobs: when they are served, what a failure shows, and who may do what."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fastapi.testclient import TestClient

from accordion_service.api.app import create_app
from accordion_service.domain.access import ADMIN_USER, FULL_ACCESS
from accordion_service.domain.jobs.loggers import (
    GIVE_UP_S,
    MAX_DELAY_S,
    EpochPosition,
    LoggerState,
    logger_delay_s,
)
from accordion_service.domain.jobs.statuses import Status
from accordion_service.loggers import SINKS, SinkRow, turns
from accordion_service.loggers.sink import Batch, SentRun, SinkSetup
from accordion_service.loggers.turns import is_held
from accordion_service.settings.secret_box import create_secret_box
from accordion_service.store.reads.loggers import read_loggers
from accordion_service.store.writes import logger_queue
from accordion_service.store.writes.accounts import AccountStore
from accordion_service.store.writes.deletion import DeletedJobs, JobDeletion
from accordion_service.store.writes.logger_queue import CLAIM_S, LoggerQueue, TurnOutcome
from accordion_service.store.writes.secrets import SecretStore
from accordion_service.store.writes.steering import accept_any
from tests.api.conftest import LOCAL
from tests.api.logger_world import LoggerWorld
from tests.api.team import JOBS, Team, wait_for
from tests.api.world import DIGITS

BOARD = {"kind": "tensorboard"}
KEY = "wandb-nobody-may-see-this"
WANDB = {"kind": "wandb", "project": "p", "api_key": {"secret": "key"}}


class TestSink:
    """Notes what it is sent; tests change what it does."""

    __test__ = False
    sent: ClassVar[list[Batch]] = []
    error: Exception | None = None
    free = threading.Event()

    def __init__(self, setup: SinkSetup) -> None:
        self.setup = setup

    def send(self, batch: Batch) -> SentRun:
        if TestSink.error is not None:
            raise TestSink.error
        if self.setup.spec.kind == "wandb":
            TestSink.free.wait()
        TestSink.sent.append(batch)
        return SentRun(run_id=batch.key, location=f"https://runs.test/{batch.key}")

    def close(self) -> None:
        pass


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> type[TestSink]:
    """All kinds of loggers are of this one."""
    monkeypatch.setattr(TestSink, "sent", [])
    monkeypatch.setattr(TestSink, "error", None)
    monkeypatch.setattr(TestSink, "free", threading.Event())
    TestSink.free.set()
    row = SinkRow(sink=f"{__name__}:TestSink", install="nothing", interval_s=5.0)
    for kind in SINKS:
        monkeypatch.setitem(SINKS, kind, row)
    return TestSink


@pytest.fixture
def world(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LoggerWorld]:
    world = LoggerWorld(tmp_path, monkeypatch, database_url=database_url)
    yield world
    world.close()


@pytest.fixture
def client(world: LoggerWorld) -> Iterator[TestClient]:
    app = create_app(world.settings, world.clock)
    with TestClient(app, base_url=LOCAL) as client:
        yield client
    app.state.accordion.database.close()


def queue_of(world: LoggerWorld) -> LoggerQueue:
    return LoggerQueue(world.database, world.clock)


def set_key(world: LoggerWorld, value: str = KEY) -> None:
    encrypted = create_secret_box(world.settings).encrypt(value)
    SecretStore(world.database, world.clock).set_secret(FULL_ACCESS, "key", encrypted)


def epochs_of(sink: type[TestSink]) -> list[list[int]]:
    return [[point.epoch for point in batch.points] for batch in sink.sent]


def test_a_logger_is_due_when_something_new_is_stored(world: LoggerWorld, sink: Any) -> None:
    plain, job_id = world.submit(), world.submit(loggers=[BOARD])
    queue = queue_of(world)
    assert not queue.has_due()
    world.finish(plain)
    world.train_epochs(job_id, 1)
    assert [logger.key for logger in queue.list_due()] == [(job_id, 0)]
    world.serve(job_id)
    world.clock.now += 60.0
    assert not queue.has_due()
    world.finish(job_id)
    assert world.serve(job_id).state == LoggerState.DONE
    world.clock.now += 60.0
    assert not queue.has_due()
    assert [epoch for epochs in epochs_of(sink) for epoch in epochs] == [0, 1, 2, 3]


def test_a_turn_belongs_to_one_process(world: LoggerWorld, sink: Any) -> None:
    job_id = world.submit(loggers=[BOARD])
    world.train_epochs(job_id, 1)
    queue = queue_of(world)
    late = queue.claim((job_id, 0))
    assert late is not None
    assert queue.claim((job_id, 0)) is None
    world.clock.now += CLAIM_S
    assert queue.claim((job_id, 0)) is not None
    outcome = TurnOutcome(sent=EpochPosition(epoch=9), state=LoggerState.DONE, next_s=None)
    assert not queue.record_success(late, outcome)
    assert not queue.record_failure(late, "late", state=LoggerState.FAILING, next_s=1.0)
    assert (world.logger(job_id).epoch, world.logger(job_id).message) == (-1, "")


def test_a_long_history_is_sent_in_several_turns(
    world: LoggerWorld, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger_queue, "MAX_EPOCHS", 3)
    job_id = world.submit(loggers=[BOARD])
    world.finish(job_id)
    assert world.serve(job_id).state == LoggerState.SENDING
    assert world.serve(job_id).state == LoggerState.DONE
    assert epochs_of(sink) == [[0, 1, 2], [3]]
    assert [batch.status for batch in sink.sent] == ["RUNNING", "FINISHED"]


def test_an_offline_run_reads_no_epochs_before_the_job_ended(world: LoggerWorld, sink: Any) -> None:
    job_id = world.submit(loggers=[{**WANDB, "mode": "offline", "api_key": None}])
    world.train_epochs(job_id, 1)
    turn = queue_of(world).claim((job_id, 0), is_held=is_held)
    assert turn is not None
    assert turn.epochs == []
    world.clock.now += CLAIM_S
    world.finish(job_id)
    assert world.serve(job_id).state == LoggerState.DONE
    assert epochs_of(sink) == [[0, 1, 2, 3]]


def test_a_job_that_never_trained_has_no_run(world: LoggerWorld, sink: Any) -> None:
    job_id = world.submit(
        loggers=[BOARD], workers={"min": 64, "max": 64}, training={"micro_batch": 1}
    )
    world.turn()
    world.cancel(job_id)
    assert world.serve(job_id).state == LoggerState.DONE
    assert sink.sent == []


def test_a_failure_is_shown_and_holds_up_neither_the_job_nor_other_loggers(
    world: LoggerWorld, sink: Any
) -> None:
    job_id = world.submit(loggers=[BOARD, BOARD])
    world.train_epochs(job_id, 1)
    sink.error = OSError("no space left")
    row = world.serve(job_id)
    assert (row.state, row.message, row.failures) == (LoggerState.FAILING, "no space left", 1)
    assert row.next_turn_at == world.clock.now + logger_delay_s(1)
    sink.error = None
    assert world.serve(job_id, 1).state == LoggerState.SENDING
    assert world.finish(job_id).status == Status.SUCCEEDED
    row = world.serve(job_id)
    assert (row.state, row.message, row.failures) == (LoggerState.DONE, "", 0)


def test_delays_grow_up_to_a_limit() -> None:
    delays = [logger_delay_s(failures) for failures in range(1, 100)]
    assert delays[:3] == [10.0, 20.0, 40.0]
    assert delays[-1] == max(delays) == MAX_DELAY_S


def test_a_logger_is_given_up_days_after_the_end_and_a_retry_serves_it_again(
    world: LoggerWorld, sink: Any
) -> None:
    job_id = world.submit(loggers=[BOARD])
    world.train_epochs(job_id, 1)
    world.runtime.fail(job_id, "ValueError: broken on purpose")
    world.finish(job_id)
    sink.error = OSError("unreachable")
    assert world.serve(job_id).state == LoggerState.FAILING
    world.clock.now += GIVE_UP_S + 1.0
    row = world.serve(job_id)
    assert (row.state, row.next_turn_at) == (LoggerState.GIVEN_UP, None)
    sink.error = None
    world.lifecycle.retry(job_id, accept_any)
    world.finish(job_id)
    assert world.serve(job_id).state == LoggerState.DONE
    assert epochs_of(sink)[-1] == [0, 1, 2, 3]


def test_a_retry_during_the_last_turn_loses_no_epoch(world: LoggerWorld, sink: Any) -> None:
    job_id = world.submit(loggers=[BOARD])
    world.train_epochs(job_id, 1)
    world.serve(job_id)
    world.runtime.fail(job_id, "ValueError: broken on purpose")
    world.finish(job_id)
    world.clock.now += 60.0
    queue = queue_of(world)
    turn = queue.claim((job_id, 0))
    assert turn is not None
    world.lifecycle.retry(job_id, accept_any)
    outcome = TurnOutcome(sent=turn.sent, state=LoggerState.DONE, next_s=None)
    assert not queue.record_success(turn, outcome)
    world.finish(job_id)
    assert world.serve(job_id).state == LoggerState.DONE
    assert [epoch for epochs in epochs_of(sink) for epoch in epochs] == [0, 1, 2, 3]


def test_a_package_that_is_missing_is_named_until_it_is_installed(
    world: LoggerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit(loggers=[BOARD])
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "accordion_service.loggers.tensorboard_sink", raising=False)
        patch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
        world.train_epochs(job_id, 1)
        row = world.serve(job_id)
    assert row.state == LoggerState.FAILING
    assert "pip install tensorboardX" in row.message
    world.finish(job_id)
    assert world.serve(job_id).state == LoggerState.DONE


def test_the_value_of_a_secret_reaches_the_sink_and_no_message(
    world: LoggerWorld, sink: Any
) -> None:
    set_key(world)
    job_id = world.submit(loggers=[WANDB])
    world.train_epochs(job_id, 1)
    sink.error = PermissionError(f"the key {KEY} is not valid")
    assert world.serve(job_id).message == "the key *** is not valid"
    SecretStore(world.database, world.clock).remove_secret(FULL_ACCESS, "key", force=True)
    assert "has no secret 'key'" in world.serve(job_id).message
    set_key(world)
    sink.error = None
    assert world.serve(job_id).state == LoggerState.SENDING


def test_a_logger_that_hangs_delays_no_other_kind(world: LoggerWorld, sink: Any) -> None:
    set_key(world)
    job_id = world.submit(loggers=[WANDB, BOARD])
    world.train_epochs(job_id, 1)
    sink.free.clear()
    world.turns.start_due()
    wait_for(lambda: world.state(job_id, 1) == LoggerState.SENDING)
    assert world.state(job_id, 0) == LoggerState.WAITING
    sink.free.set()
    wait_for(lambda: world.state(job_id, 0) == LoggerState.SENDING)


def test_many_due_loggers_that_must_wait_delay_no_other(
    world: LoggerWorld, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "MAX_PER_OWNER", 1)
    monkeypatch.setattr(logger_queue, "MAX_DUE", 2)
    set_key(world)
    first, second = world.submit(loggers=[WANDB] * 4), world.submit(loggers=[BOARD])
    world.train_epochs(first, 1)
    world.train_epochs(second, 1)
    with world.database.write() as session:
        row = world.logger(second)
        row.next_turn_at = world.clock.now
        session.merge(row)
    sink.free.clear()
    for _ in range(2):
        world.turns.start_due()
    wait_for(lambda: world.state(second) == LoggerState.SENDING)
    sink.free.set()
    wait_for(lambda: world.state(first) == LoggerState.SENDING)


def test_a_kind_that_is_full_is_not_listed(world: LoggerWorld, sink: Any) -> None:
    set_key(world)
    job_id = world.submit(loggers=[WANDB, BOARD])
    world.train_epochs(job_id, 1)
    assert [one.kind for one in queue_of(world).list_due(full_kinds={"wandb"})] == ["tensorboard"]


def test_a_logger_whose_thread_cannot_start_is_served_later(
    world: LoggerWorld, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    job_id = world.submit(loggers=[BOARD])
    world.train_epochs(job_id, 1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        assert not world.turns.start_due()
    world.turns.start_due()
    wait_for(lambda: world.state(job_id) == LoggerState.SENDING)


def test_loggers_of_a_disabled_user_are_not_served(team: Team) -> None:
    token = team.user("ada")
    database, clock = team.app.state.accordion.database, team.clock
    answer = team.call(token, "POST", JOBS, json={**DIGITS, "loggers": [BOARD]})
    job_id = answer.json()["id"]
    team.call(token, "POST", f"{JOBS}/{job_id}/cancel")
    queue = LoggerQueue(database, clock)
    assert [logger.owner for logger in queue.list_due()] == ["ada"]
    AccountStore(database, clock).change_user(FULL_ACCESS, "ada", role=None, disabled=True)
    assert queue.list_due() == []


def test_the_files_of_loggers_are_removed_with_the_job(world: LoggerWorld) -> None:
    job_id = world.submit(loggers=[BOARD])
    world.finish(job_id)
    folder = Path(world.serve(job_id).location)
    assert list(folder.iterdir())
    JobDeletion(world.database, world.clock, FULL_ACCESS).delete_job(job_id, accept_any)
    world.clock.now += 60.0
    world.turn()
    wait_for(lambda: DeletedJobs(world.database).list_oldest(1) == [])
    assert not world.settings.loggers_of(job_id).exists()
    assert read_loggers(world.database, job_id) == []


def test_the_api_lists_the_loggers_of_a_job(
    client: TestClient, world: LoggerWorld, sink: Any
) -> None:
    job_id = client.post(JOBS, json={**DIGITS, "loggers": [BOARD]}).json()["id"]
    world.train_epochs(job_id, 2)
    world.serve(job_id)
    [item] = client.get(f"{JOBS}/{job_id}/loggers").json()["items"]
    assert item.pop("sent_at").startswith("2027-01-15")
    assert item == {
        "number": 0,
        "kind": "tensorboard",
        "state": "SENDING",
        "location": f"https://runs.test/{job_id}-0",
        "message": "",
        "failures": 0,
        "next_epoch": 2,
    }


@pytest.mark.parametrize(
    ("logger", "pointer", "detail"),
    [
        (WANDB, "/loggers/0/api_key/secret", f"user {ADMIN_USER!r} has no secret 'key'"),
        (
            {"kind": "mlflow", "tracking_uri": "http://127.0.0.1:5000"},
            "/loggers/0/tracking_uri",
            "ask an operator to add its network",
        ),
        (
            {"kind": "mlflow", "tracking_uri": "https://ada:pw@mlflow.test"},
            "/loggers/0/tracking_uri",
            "contains a user name or a password",
        ),
        (
            {"kind": "mlflow", "tracking_uri": "file:///etc"},
            "/loggers/0/tracking_uri",
            "file:///etc",
        ),
        ({"kind": "comet"}, "/loggers/0", "comet"),
        ({"kind": "tensorboard", "directory": "/etc"}, "/loggers/0/directory", "unknown key"),
    ],
)
def test_a_logger_that_cannot_work_is_refused_at_once(
    client: TestClient, logger: dict[str, Any], pointer: str, detail: str
) -> None:
    refused = client.post(JOBS, json={**DIGITS, "loggers": [logger]})
    assert refused.status_code == 422, refused.text
    [error] = refused.json()["errors"]
    assert error["pointer"] == pointer
    assert detail in error["detail"]


@pytest.mark.parametrize("workers", [1, 3])
def test_the_bytes_of_an_epoch_are_those_on_the_wire(
    world: LoggerWorld, sink: type[TestSink], workers: int
) -> None:
    job_id = world.submit(loggers=[BOARD], workers={"min": workers, "max": workers})
    world.train_epochs(job_id, 1)
    world.serve(job_id)
    sent, (epoch, *_) = sink.sent[0].points[0].values, world.history.epochs(job_id)
    counted = epoch.record["bytes"]
    assert sent["bytes/sent"] == counted["wire"] != counted["payload"]
    assert sent["bytes/dense"] == counted["dense_wire"]
    assert ("bytes/compression_ratio" in sent) == (workers > 1)
