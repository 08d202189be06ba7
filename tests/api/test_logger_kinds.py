"""Loggers of every kind, with the real packages and without a network: each epoch arrives once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from accordion_service.domain.jobs.loggers import LoggerState, RunStatus
from accordion_service.loggers import SINKS
from accordion_service.loggers.serving import package_settings
from accordion_service.loggers.sink import Batch, Point, SinkSetup
from accordion_service.store.writes.logger_queue import CLAIM_S, LoggerQueue
from accordion_service.store.writes.steering import accept_any
from accordion_workers.spec.loggers import MlflowSpec
from tests.api.logger_readers import PACKAGES, READERS, StoredRun
from tests.api.logger_world import KINDS, LoggerWorld, make_mlflow_file
from tests.conftest import Require


class Killed(BaseException):
    """The end of a process, in a test."""


@pytest.fixture
def world(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LoggerWorld]:
    world = LoggerWorld(tmp_path, monkeypatch, database_url=database_url)
    for name, value in package_settings(world.settings).items():
        monkeypatch.setenv(name, value)
    yield world
    world.close()


@pytest.fixture(scope="module")
def mlflow_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file of MLflow without runs: its tables take more than a second to make."""
    return make_mlflow_file(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest, require: Require, world: LoggerWorld) -> str:
    require.package(PACKAGES[request.param])
    if request.param == "mlflow":
        world.mlflow_file = request.getfixturevalue("mlflow_file")
    return request.param


def submit(world: LoggerWorld, kind: str, **changes: Any) -> str:
    return world.submit(loggers=[KINDS[kind]], **changes)


def read(world: LoggerWorld, job_id: str) -> StoredRun:
    row = world.logger(job_id)
    return READERS[row.kind](row)


def losses_of(world: LoggerWorld, job_id: str) -> list[tuple[int, Any]]:
    """Epochs and losses that the database has."""
    rows = world.history.epochs(job_id)
    return [(row.epoch, pytest.approx(row.record["loss"], rel=1e-6)) for row in rows]


def kill_before_recording(world: LoggerWorld, job_id: str, patch: pytest.MonkeyPatch) -> None:
    """End the process that serves the job's logger after it sent, and let another one begin."""

    def die(*_: Any) -> None:
        raise Killed

    with patch.context() as killing:
        killing.setattr(LoggerQueue, "record_success", die)
        with pytest.raises(Killed):
            world.serve(job_id)
    world.turns = world.new_turns()
    world.clock.now += CLAIM_S


def test_every_kind_is_tested() -> None:
    assert KINDS.keys() == SINKS.keys() == READERS.keys()


def test_every_epoch_arrives_once_and_the_run_ends(world: LoggerWorld, kind: str) -> None:
    job_id = submit(world, kind, labels={"team": "vision"})
    world.train_epochs(job_id, 2)
    world.serve(job_id)
    world.finish(job_id)
    assert world.serve(job_id).state == LoggerState.DONE
    run = read(world, job_id)
    assert run.losses == losses_of(world, job_id)
    assert [epoch for epoch, _ in run.losses] == [0, 1, 2, 3]
    assert run.params["training.optimizer.lr"] == "0.1"
    assert run.status in {"", "FINISHED"}


def test_a_kill_after_sending_doubles_and_loses_nothing(
    world: LoggerWorld, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submit(world, kind)
    world.train_epochs(job_id, 2)
    kill_before_recording(world, job_id, monkeypatch)
    world.finish(job_id)
    kill_before_recording(world, job_id, monkeypatch)
    world.serve(job_id)
    assert read(world, job_id).losses == losses_of(world, job_id)


def test_a_retried_job_goes_on_in_the_same_run(world: LoggerWorld, kind: str) -> None:
    job_id = submit(world, kind)
    world.train_epochs(job_id, 2)
    world.runtime.fail(job_id, "ValueError: broken on purpose")
    world.finish(job_id)
    run_id = world.serve(job_id).run_id
    assert read(world, job_id).status in {"", "FAILED"}
    world.lifecycle.retry(job_id, accept_any)
    world.finish(job_id)
    assert world.serve(job_id).run_id == run_id
    run = read(world, job_id)
    assert [epoch for epoch, _ in run.losses] == [0, 1, 2, 3]
    assert run.status in {"", "FINISHED"}


def test_a_cancelled_job_ends_its_run(world: LoggerWorld, kind: str) -> None:
    job_id = submit(world, kind)
    world.train_epochs(job_id, 1)
    world.cancel(job_id)
    world.finish(job_id)
    world.serve(job_id)
    assert read(world, job_id).status in {"", "KILLED"}


def test_an_epoch_that_is_trained_again_replaces_its_point(
    world: LoggerWorld, require: Any
) -> None:
    require.package("tensorboard")
    job_id = submit(world, "tensorboard", checkpoint={"every_epochs": 3})
    world.train_epochs(job_id, 2)
    world.serve(job_id)
    before = read(world, job_id)
    world.runtime.break_group(job_id)
    world.finish(job_id)
    world.serve(job_id)
    assert [epoch for epoch, _ in before.losses] == [0, 1]
    assert read(world, job_id).losses == losses_of(world, job_id)


def test_names_that_mlflow_refuses_are_changed(tmp_path: Path, require: Require) -> None:
    require.package("mlflow")
    from mlflow import MlflowClient

    from accordion_service.loggers.mlflow_sink import MlflowSink

    names = ["eval//loss", "eval/.", "..", "/a", "a/", "a" * 248 + "/.b", "/" * 300, "é", "ü"]
    batch = Batch(
        key="key",
        name="job",
        owner="ada",
        started_at=0.0,
        ended_at=None,
        params={name: f"of {name}"[:9] for name in names},
        tags=dict.fromkeys(names, "tag"),
        points=[Point(epoch=0, time=0.0, values=dict.fromkeys(names, 1.0))],
        is_first=True,
        status=RunStatus.RUNNING,
        run_id="",
    )
    sink = MlflowSink(
        SinkSetup(
            spec=MlflowSpec(kind="mlflow"),
            folder=tmp_path,
            number=0,
            version=1,
            guard=nullcontext,
            wandb_url="",
        )
    )
    sent = sink.send(batch)
    data = MlflowClient(sent.location).get_run(sent.run_id).data
    sink.close()
    assert {"eval/_/loss", "eval/_", "_", "_/a", "a/_", "a" * 248 + "/_"} <= data.params.keys()
    assert data.params.keys() == data.metrics.keys()
    assert len(data.params) == len(names) - 2
    assert data.params["_"] == "of .."


def test_two_loggers_of_a_kind_have_runs_of_their_own(world: LoggerWorld, kind: str) -> None:
    job_id = world.submit(loggers=[KINDS[kind]] * 2)
    world.finish(job_id)
    rows = [world.serve(job_id, number) for number in range(2)]
    assert rows[0].location != rows[1].location
    for row in rows:
        assert READERS[kind](row).losses == losses_of(world, job_id)


def test_values_of_secrets_and_variables_are_no_hyperparameters(
    world: LoggerWorld, kind: str
) -> None:
    job_id = submit(world, kind, env={"KEY": "typed-in-by-hand"})
    world.finish(job_id)
    run_params = world.serve(job_id) and read(world, job_id).params
    assert "typed-in-by-hand" not in str(run_params)
    assert not any(name.startswith(("env", "loggers")) for name in run_params)
