"""A guest run of one process: an unchanged loop, its session, and a service that comes and goes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accordion
from accordion.base.messages import Override
from accordion.config import Config, DetectorConfig, Window
from accordion.session import coordination
from accordion_ray import guest_run
from accordion_ray.epochs import EpochFollower
from accordion_ray.failures import build_change_record
from accordion_ray.guest_run import GuestRun
from accordion_ray.identity import GuestState
from accordion_ray.records import Attached, known_spec
from accordion_ray.service_connection import ServiceConnection
from accordion_workers.hub.journal import Journal, claim_generation, read_records
from accordion_workers.hub.record_sender import RecordSender
from accordion_workers.records.contract import (
    GUEST_ATTEMPT,
    AcksRecord,
    Cursor,
    DecisionRecord,
    DesiredState,
    EndRecord,
    EpochRecord,
    FailureRecord,
    Guest,
    RejectedRecord,
    ResizeRecord,
    Started,
)
from accordion_workers.training.clock import Clock
from tests.unit.workers.world import FakeCluster, until

CONFIG = Config(detector=DetectorConfig(window=Window(steps=2)))
NO_STATE = GuestState()
HIGH = Override(id="high", level="high", number=1)
STRANGE = Override(id="strange", level="high", layers=("conv*",), number=2)
FAILURE = FailureRecord(cause="job", rank=0, message="rank 0: ValueError: boom")


class Trained:
    """A guest run and the loop that it follows."""

    def __init__(
        self,
        cluster: FakeCluster,
        storage: Path,
        *,
        max_failures: int = 0,
        length: int | None = None,
        before: GuestState = NO_STATE,
    ) -> None:
        self.cluster, self.storage = cluster, storage
        self.found = ["ab"]
        generation = claim_generation(storage)
        spec = known_spec(
            CONFIG, name="digits", world_size=1, global_batch=8, resources={"CPU": 1.0}
        )
        self.guest = Guest(
            job_id="a",
            name="digits",
            generation=generation,
            train_run="r",
            ray_job_id="1",
            spec=spec,
        )
        connection = ServiceConnection(
            self.guest, installation=None, find=lambda: self.found, connect=lambda _: cluster
        )
        clock = Clock()
        journal = Journal(storage, attempt=GUEST_ATTEMPT, generation=generation, clock=clock.now)
        self.saved = [before]
        self.run = GuestRun(
            connection,
            journal,
            clock,
            max_failures=max_failures,
            before=before,
            save=lambda state: self.saved.append(state),
        )
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.session = accordion.attach(
            self.model,
            CONFIG,
            optimizer=self.optimizer,
            step="optimizer",
            decider=self.run.keep_measurements,
            global_batch=8,
        )
        attached = Attached(
            session=self.session,
            optimizer=self.optimizer,
            parameters=20,
            steps_per_epoch=length,
        )
        self.epochs = EpochFollower(attached, self.run)
        self.session.on_boundary = self.epochs.pass_boundary
        self.run.begin(attached, self.model)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.optimizer.zero_grad()
            self.model(torch.ones(2, 4)).sum().backward()
            self.optimizer.step()

    def payloads(self, kind: type[Any]) -> list[Any]:
        """Payloads of a kind that the actor holds."""
        records = self.cluster.call("drain", "a", Cursor()).records
        return [record.payload for record in records if isinstance(record.payload, kind)]

    def recorded(self, kind: type[Any]) -> list[Any]:
        """Payloads of a kind in the journal."""
        return [
            record.payload
            for record in read_records(self.storage)
            if isinstance(record.payload, kind)
        ]


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_run, "REFRESH_S", 0.01)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with closing(FakeCluster()) as cluster:
        yield cluster


@pytest.fixture
def trained(cluster: FakeCluster, tmp_path: Path) -> Iterator[Trained]:
    world = Trained(cluster, tmp_path)
    yield world
    world.run.close()


def held(trained: Trained, kind: type[Any]) -> bool:
    return bool(trained.payloads(kind))


def test_a_run_tells_of_its_start_its_windows_and_its_progress(trained: Trained) -> None:
    trained.steps(4)
    until(functools.partial(held, trained, DecisionRecord))
    [started] = trained.payloads(Started)
    assert (started.world_size, started.step, started.epoch, started.cause) == (1, 0, 0, "start")
    assert (started.parameters, started.steps_per_epoch) == (20, 0)
    until(lambda: trained.cluster.call("progress", "a"))
    progress = trained.cluster.call("progress", "a")
    # The session's boundary lies before the optimizer's step.
    assert trained.run.read_totals().seconds["optimize"] > 0.0
    assert (progress.epochs, progress.steps_per_epoch, progress.global_batch) == (0, 0, 8)


def test_training_goes_on_without_a_service_and_catches_up(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    trained = Trained(cluster, tmp_path)
    trained.found = []
    trained.steps(4)
    trained.epochs.begin_report({"accuracy": 0.5})
    assert trained.recorded(EpochRecord)
    trained.found = ["ab"]
    until(functools.partial(held, trained, EpochRecord))
    assert trained.payloads(Started)
    trained.run.close()


def test_what_a_killed_actor_held_is_delivered_again(trained: Trained) -> None:
    until(functools.partial(held, trained, Started))
    trained.cluster.kill_actor()
    until(functools.partial(held, trained, Started))
    until(lambda: trained.cluster.call("guests") == (trained.guest,))


def test_an_override_takes_hold_at_a_step_boundary_and_is_acknowledged(trained: Trained) -> None:
    until(lambda: trained.cluster.call("guests"))
    trained.cluster.call("order", "a", DesiredState(version=1, overrides=(HIGH, STRANGE)))
    until(functools.partial(held, trained, RejectedRecord))
    trained.steps(1)
    until(functools.partial(held, trained, AcksRecord))
    [acks] = trained.payloads(AcksRecord)
    assert acks.override_ids == ("high",)
    assert [(ack.rank, ack.digest) for ack in acks.acks] == [(0, acks.digest)]
    [rejected] = trained.payloads(RejectedRecord)
    assert rejected.override_id == "strange"
    assert "conv*" in rejected.reason


def test_a_report_ends_an_epoch_with_the_numbers_of_its_metrics(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "estimate_agreement", lambda *_: 0.5)
    trained.steps(3)
    trained.epochs.begin_report(
        {"loss": 0.5, "accuracy": 1, "best": True, "note": "x", "nan": float("nan")}
    )
    trained.epochs.begin_report({"loss": 0.1})
    [record] = trained.recorded(EpochRecord)
    assert (record.epoch, record.step, record.loss, record.metrics) == (
        0,
        3,
        0.5,
        {"loss": 0.5, "accuracy": 1.0},
    )
    assert (record.global_batch, record.samples, record.lr) == (8, 24, pytest.approx(0.1))
    assert record.statistic_by_layer is not None
    assert record.agreement == 0.5
    assert trained.session.epoch == 1


def test_the_epochs_of_a_run_add_up_to_its_bytes(trained: Trained) -> None:
    for _ in range(3):
        trained.steps(2)
        trained.epochs.end_before_save()
        trained.epochs.begin_report({})
    epochs = trained.recorded(EpochRecord)
    assert [one.epoch for one in epochs] == [0, 1, 2]
    assert sum(one.bytes.dense for one in epochs) == trained.session.ledger.total.dense > 0


def test_an_epoch_that_was_saved_but_not_reported_is_recorded_with_the_next_step(
    trained: Trained,
) -> None:
    trained.steps(2)
    trained.epochs.end_before_save()
    assert trained.recorded(EpochRecord) == []
    trained.steps(1)
    assert [one.step for one in trained.recorded(EpochRecord)] == [2]


def test_an_epoch_of_a_given_length_has_the_metrics_of_its_report(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    trained = Trained(cluster, tmp_path, length=2)
    trained.steps(1)
    trained.epochs.begin_report({"warmup": 1.0, "loss": 3.0})
    trained.steps(1)
    trained.epochs.begin_report({"loss": 0.5})
    trained.steps(3)
    epochs = trained.recorded(EpochRecord)
    assert [one.metrics for one in epochs] == [{"warmup": 1.0, "loss": 0.5}, {}]
    assert [one.samples for one in epochs] == [16, 16]
    trained.run.close()


def test_the_last_epoch_of_a_given_length_is_recorded_when_training_ends(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    trained = Trained(cluster, tmp_path, length=2)
    trained.steps(2)
    assert trained.recorded(EpochRecord) == []
    trained.epochs.record_ended()
    assert [one.step for one in trained.recorded(EpochRecord)] == [2]
    trained.run.close()


def test_epochs_of_a_given_length_end_without_reports(cluster: FakeCluster, tmp_path: Path) -> None:
    trained = Trained(cluster, tmp_path, length=2)
    trained.steps(5)
    trained.epochs.begin_report({"loss": 1.0})
    assert [(one.epoch, one.step) for one in trained.recorded(EpochRecord)] == [(0, 2), (1, 4)]
    trained.run.close()


def test_a_rate_that_changes_inside_an_epoch_is_seen(trained: Trained) -> None:
    trained.steps(1)
    trained.epochs.begin_report({})
    trained.optimizer.param_groups[0]["lr"] = 0.01
    trained.steps(1)
    until(functools.partial(held, trained, DecisionRecord))
    assert trained.recorded(DecisionRecord)[-1].decision.cause == "lr_drop"


def test_a_run_whose_function_returns_has_succeeded(trained: Trained) -> None:
    trained.steps(1)
    until(lambda: trained.cluster.call("guests"))
    assert trained.run.record_end(None)
    until(functools.partial(held, trained, EndRecord))
    assert trained.payloads(EndRecord) == [EndRecord(status="SUCCEEDED", reason="COMPLETED")]


def test_a_failure_is_the_end_when_ray_train_gives_up(cluster: FakeCluster, tmp_path: Path) -> None:
    ended, before = [], GuestState()
    for _ in range(2):
        trained = Trained(cluster, tmp_path, max_failures=1, before=before)
        until(lambda trained=trained: trained.guest in trained.cluster.call("guests"))
        ended.append(trained.run.record_end(FAILURE))
        before = trained.saved[-1]
    assert ended == [False, True]
    assert [one.final for one in trained.recorded(FailureRecord)] == [False, True]
    assert trained.recorded(EndRecord) == [
        EndRecord(status="FAILED", reason="TASK_RAISED", message=FAILURE.message)
    ]


def test_the_next_worker_group_tells_of_the_one_before(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    first = Trained(cluster, tmp_path)
    first.steps(3)
    first.epochs.begin_report({})
    first.run.close()
    left = first.saved[-1]
    second = Trained(cluster, tmp_path, before=replace(left, stepped_at=left.stepped_at - 60.0))
    started = second.recorded(Started)[-1]
    assert (started.cause, started.previous_world_size, started.steps_rolled_back) == (
        "recovery",
        1,
        3,
    )
    assert started.seconds_lost >= 60.0
    second.run.close()


@pytest.mark.parametrize("failure", [None, FAILURE])
def test_a_worker_group_tells_that_the_one_before_was_lost_unless_that_told_itself(
    cluster: FakeCluster, tmp_path: Path, failure: FailureRecord | None
) -> None:
    first = Trained(cluster, tmp_path, max_failures=1)
    first.steps(1)
    if failure is not None:
        first.run.record_end(failure)
    first.run.close()
    second = Trained(cluster, tmp_path, max_failures=1, before=first.saved[-1])
    [told] = second.recorded(FailureRecord)
    assert told.cause == ("job" if failure else "infrastructure")
    second.run.close()


def test_the_newest_step_is_saved_when_rank_0_has_ended(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_run, "REFRESH_S", 60.0)
    trained = Trained(cluster, tmp_path)
    trained.steps(3)
    trained.run.keep_newest_step()
    assert trained.saved[-1].step == 3
    until(lambda: trained.cluster.call("progress", "a"))
    assert trained.cluster.call("progress", "a").step == 3
    trained.run.close()


def test_a_failure_tells_at_which_step_it_happened(trained: Trained) -> None:
    trained.steps(3)
    trained.run.record_end(FAILURE)
    [told] = trained.recorded(FailureRecord)
    assert (told.epoch, told.step) == (0, 3)


def test_a_group_that_ray_train_enlarged_was_resized_and_not_lost() -> None:
    smaller = GuestState(world_size=1, step=7, stepped_at=60.0)
    change = build_change_record(smaller, world_size=2)
    assert isinstance(change, ResizeRecord)
    assert (change.cause, change.old, change.new, change.step) == ("joined", 1, 2, 7)


@pytest.mark.parametrize("size", [1, 2])
def test_a_group_that_did_not_grow_follows_a_lost_one(size: int) -> None:
    change = build_change_record(GuestState(world_size=2, step=7), world_size=size)
    assert isinstance(change, FailureRecord)
    assert (change.cause, change.step) == ("infrastructure", 7)


def test_a_journal_that_cannot_be_written_does_not_end_training(
    trained: Trained, caplog, monkeypatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Journal, "write", fail)
    trained.epochs.end_before_save()
    trained.steps(4)
    assert trained.session.steps == 4
    assert [
        record.getMessage() for record in caplog.records if "No space left" in record.getMessage()
    ]


def test_the_end_is_saved_before_it_is_sent(trained: Trained, monkeypatch) -> None:
    until(functools.partial(held, trained, Started))
    at_flush: list[tuple[bool, bool]] = []
    monkeypatch.setattr(
        RecordSender,
        "flush",
        lambda *_: at_flush.append((trained.saved[-1].ended, bool(trained.recorded(EndRecord)))),
    )
    trained.run.record_end(None)
    assert at_flush == [(True, True)]


def test_a_state_that_is_saved_late_does_not_undo_the_end(trained: Trained) -> None:
    trained.run.record_end(None)
    trained.run.close()
    assert trained.saved[-1].ended


def test_the_end_of_a_long_run_reads_no_history(trained: Trained, monkeypatch) -> None:
    until(functools.partial(held, trained, Started))
    monkeypatch.setattr("accordion_workers.hub.record_sender.read_records", None)
    assert trained.run.record_end(FAILURE)
    assert [one.final for one in trained.recorded(FailureRecord)] == [True]


def test_a_history_that_cannot_be_read_does_not_end_training(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr("accordion_workers.hub.record_sender.read_records", fail)
    trained = Trained(cluster, tmp_path)
    trained.steps(4)
    until(functools.partial(held, trained, Started))
    trained.run.close()


def test_the_records_of_a_run_without_a_service_are_limited(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_run, "RECORD_LIMIT", 20)
    cluster.silent.add("enlist")
    trained = Trained(cluster, tmp_path)
    for _ in range(60):
        trained.steps(1)
        trained.epochs.begin_report({})
    until(lambda: len(read_records(tmp_path)) <= 40)
    cluster.silent.clear()
    until(lambda: any(one.epoch == 59 for one in trained.payloads(EpochRecord)))
    assert trained.payloads(Started)
    assert len(trained.payloads(EpochRecord)) <= 20
    trained.run.close()


def test_the_time_of_progress_is_that_of_its_step(trained: Trained) -> None:
    trained.steps(3)
    until(lambda: getattr(trained.cluster.call("progress", "a"), "step", 0) == 3)
    progress = trained.cluster.call("progress", "a")
    enlisted = trained.cluster.calls.count("enlist")
    until(lambda: trained.cluster.calls.count("enlist") > enlisted + 2)
    assert trained.cluster.call("progress", "a") == progress


def test_an_error_in_a_record_does_not_end_training(trained: Trained, caplog, monkeypatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("a surprise")

    monkeypatch.setattr(guest_run, "find_loss", fail)
    for _ in range(2):
        trained.steps(1)
        trained.epochs.begin_report({"loss": 1.0})
    failed = [record for record in caplog.records if "could not record an epoch" in record.message]
    assert len(failed) == 1
