"""What rank 0 tells about a run: records, progress, seconds and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from accordion.compress.step_signals import Signal
from accordion_workers.records.contract import StorageUse
from accordion_workers.training.clock import PHASES, Clock
from accordion_workers.training.loop import train_epochs, train_job
from accordion_workers.training.reports import PROGRESS_EVERY_S
from accordion_workers.training.train_state import build_train_state
from tests.distributed.loop_jobs import RecordingLink, context, run_job, spec, synthetic


@dataclass
class Hand:
    """A clock on which every reading takes a millisecond and sleeping takes as long as it says."""

    time: float = 0.0
    slept: list[float] = field(default_factory=list)

    def elapsed(self) -> float:
        self.time += 0.001
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def clock(self) -> Clock:
        return Clock(elapsed=self.elapsed, now=lambda: 1.0, sleep=self.sleep)


def train_by_hand(
    rank: int, storage: Path, options: Mapping[str, Any]
) -> tuple[Hand, RecordingLink]:
    hand, link = Hand(), RecordingLink()
    train_job(context(rank, storage, synthetic(**options), link), hand.clock())
    link.callback = None
    return hand, link


def test_a_step_is_stretched_to_the_length_that_the_job_asks_for(run_group, tmp_path):
    ((hand, link),) = run_group(1, train_by_hand, tmp_path, {"min_step_s": 0.5})
    assert len(hand.slept) == 8
    assert all(0.4 < slept < 0.5 for slept in hand.slept)
    assert sum(record.seconds_by_phase["wait"] for record in link.of("epoch")) == pytest.approx(
        sum(hand.slept), rel=0.01
    )


def test_progress_is_told_no_more_often_than_four_times_a_second_and_at_the_end(
    run_group, tmp_path
):
    ((hand, link),) = run_group(1, train_by_hand, tmp_path, {"samples": 64 * 200})
    *told, last = link.progresses
    assert 1 <= len(told) <= hand.time / PROGRESS_EVERY_S
    assert (last.epoch, last.step, last.steps_per_epoch, last.epochs, last.world_size) == (
        2,
        400,
        200,
        2,
        1,
    )
    assert last.bytes.payload == sum(record.bytes.payload for record in link.of("epoch"))
    assert (last.steps, last.global_batch) == (400, 64)
    assert last.loss == link.of("epoch")[-1].loss
    assert last.samples_per_s > 0


def test_an_epochs_record_names_every_phase_and_its_own_bytes(run_group, tmp_path):
    epochs = run_group(2, run_job, tmp_path, synthetic(3, width=64))[0].link.of("epoch")
    assert all(tuple(record.seconds_by_phase) == PHASES for record in epochs)
    values = 2 * (64 * 64 + 64)
    assert [record.bytes.dense for record in epochs] == [4 * values * 4] * 3
    assert all(0 < record.bytes.payload < record.bytes.dense for record in epochs)
    assert all(record.bytes.dense_wire == record.bytes.dense for record in epochs)
    assert all(0 < record.bytes.control_wire < record.bytes.wire for record in epochs)


def save_when_asked(rank: int, storage: Path) -> list[str]:
    link = RecordingLink()
    run = build_train_state(context(rank, storage, synthetic(1), link), Clock())
    if rank == 1:
        run.session.request(Signal.CHECKPOINT)
    train_epochs(run)
    return [record.name for record in link.of("checkpoint")]


def test_any_rank_may_ask_for_a_checkpoint_in_the_middle_of_an_epoch(run_group, tmp_path):
    names, _ = run_group(2, save_when_asked, tmp_path)
    assert [name.partition("-e")[2] for name in names] == [
        "000000-s0000000064",
        "000001-s0000000000",
    ]


def test_windows_counted_in_steps_are_decided_inside_an_epoch(run_group, tmp_path):
    job = spec(training={"epochs": 2, "warmup": {"epochs": 2}}, policy={"window": {"steps": 10}})
    link = run_group(2, run_job, tmp_path, job)[0].link
    causes = [(record.decision.step, record.decision.cause) for record in link.of("decision")]
    assert [step for step, cause in causes if cause != "hold"] == [10, 20, 30, 40]
    assert all(record.statistic_by_layer for record in link.of("epoch"))


def test_an_epochs_record_carries_the_statistic_only_where_a_window_closed(run_group, tmp_path):
    epochs = run_group(1, run_job, tmp_path, synthetic(4))[0].link.of("epoch")
    assert [record.statistic_by_layer is not None for record in epochs] == [
        False,
        True,
        False,
        True,
    ]


def test_the_group_says_at_its_start_what_it_trains(run_group, tmp_path):
    first = run_group(2, run_job, tmp_path, synthetic())[0].link.posted[0]
    assert (first.kind, first.world_size, first.steps_per_epoch, first.resumed_from) == (
        "started",
        2,
        4,
        None,
    )
    assert [layer.name for layer in first.layers] == ["layers.0.weight", "layers.1.weight"]
    assert first.parameters == 2 * (16 * 16 + 16)


def test_an_epoch_is_told_before_the_checkpoint_that_knows_of_it(run_group, tmp_path):
    posted = run_group(1, run_job, tmp_path, synthetic())[0].link.posted
    kinds = [payload.kind for payload in posted if payload.kind != "checkpoint"]
    assert kinds == ["started", "epoch", "decision", "acks", "epoch"]
    places = [
        (payload.kind, payload.epoch)
        for payload in posted
        if payload.kind in {"epoch", "checkpoint"}
    ]
    # a checkpoint names the epoch that comes next, and is told when it is written.
    assert all(
        places.index(("epoch", epoch)) < places.index(("checkpoint", epoch + 1)) for epoch in (0, 1)
    )


def test_a_checkpoint_is_taken_as_often_as_asked_and_at_the_end(run_group, tmp_path):
    job = spec(training={"epochs": 5}, checkpoint={"every_epochs": 2})
    saved = run_group(1, run_job, tmp_path, job)[0].link.of("checkpoint")
    assert [record.epoch for record in saved] == [2, 4, 5]
    assert all(record.size_bytes > 0 for record in saved)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_group_says_where_its_checkpoints_are_and_who_saw_that_place(
    run_group, tmp_path, workers
):
    (started,) = run_group(workers, run_job, tmp_path, synthetic(1))[0].link.of("started")
    place = str(tmp_path / "checkpoints")
    assert started.storage == StorageUse(place=place, workers=workers, hosts=1)
