"""Batch levels: the regime of the whole model says how many samples a step takes, together with
compression.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from accordion.base.messages import Override, plan_digest
from accordion_workers.records.contract import DesiredState, JobSpec
from tests.distributed.loop_jobs import (
    RecordingLink,
    Result,
    equal,
    run_job,
    spec,
    what_was_learned,
)

TRAINING = {"epochs": 7, "optimizer": {"lr": 0.05}, "lr_decay": {"at": [5]}}
LEVELS = {"low": 64, "high": 256, "warmup_steps": 4}
STOP = DesiredState(version=1, stop="cancel")


def job(*, window: dict[str, int] | None = None, **batch: Any) -> JobSpec:
    """Digits with PowerSGD; 23 steps an epoch at the small batch, 6 at the large one; its rate
    drops before epoch 5.
    """
    return spec(
        training=TRAINING, batch={**LEVELS, **batch}, policy={"window": window or {"epochs": 1}}
    )


@pytest.fixture(scope="module")
def grown(run_group, tmp_path_factory) -> Result:
    return run_group(2, run_job, tmp_path_factory.mktemp("grown"), job())[0]


def column(result: Result, name: str) -> list[Any]:
    """A field of the epochs' records, by epoch."""
    return [getattr(record, name) for record in result.link.of("epoch")]


def rates(result: Result) -> list[float]:
    return [round(rate, 12) for rate in column(result, "lr")]


def test_the_batch_grows_when_the_whole_model_is_stable_and_layers_stay_light(grown):
    assert column(grown, "global_batch") == [64, 64] + [256] * 5
    assert [set(levels.values()) for levels in column(grown, "level_by_layer")[2:5]] == [
        {"low"}
    ] * 3
    reason = grown.link.of("decision")[1].decision.reason
    assert reason.startswith("1 of 2 layers critical")
    assert "global batch becomes 256: the whole gradient changed by" in reason
    assert reason.endswith("has grown 4 times, the learning rate has fallen 1 times")


def test_every_sample_of_every_epoch_is_trained_on_whatever_the_batch(grown):
    assert column(grown, "samples") == [1437] * 7
    assert column(grown, "step") == [23, 46, 52, 58, 64, 70, 76]


def test_the_rate_is_the_schedules_times_the_batch_over_the_low_one(grown):
    assert rates(grown) == [0.05, 0.05, 0.2, 0.2, 0.2, 0.02, 0.02]


def test_the_larger_batch_saves_bytes_beside_compression(grown):
    sent, dense = (
        [getattr(used, name) for used in column(grown, "bytes")] for name in ("payload", "dense")
    )
    # 6 steps in place of 23
    assert dense[4] / dense[1] == pytest.approx(6 / 23)
    assert sent[4] < 0.5 * min(sent[1], dense[4])


def test_a_drop_of_the_rate_makes_the_batch_small_again_only_where_it_may_shrink(
    grown, run_group, tmp_path
):
    free = run_group(2, run_job, tmp_path, job(grow_only=False))[0]
    assert column(free, "global_batch") == [64, 64, 256, 256, 256, 64, 64]
    assert rates(free) == [0.05, 0.05, 0.2, 0.2, 0.2, 0.005, 0.005]
    assert column(grown, "regime_by_layer")[5] == column(free, "regime_by_layer")[5]
    assert set(column(free, "regime_by_layer")[5].values()) == {"critical"}


def test_the_detector_reads_the_schedules_rate_and_skips_the_window_of_a_new_batch(grown):
    decisions = [record.decision for record in grown.link.of("decision")]
    assert [decision.cause for decision in decisions] == [
        "window",
        "window",
        "skip",
        "window",
        "lr_drop",
        "window",
    ]
    assert decisions[4].reason.startswith("learning rate drops from 0.05 to 0.005")


def test_every_rank_acknowledges_the_batch_with_its_plan(grown):
    for acks, record in zip(grown.link.of("acks"), grown.link.of("decision"), strict=True):
        digest = plan_digest(record.decision.level_by_layer, record.decision.global_batch)
        assert [(ack.rank, ack.digest) for ack in acks.acks] == [(0, digest), (1, digest)]


@pytest.fixture(scope="module")
def stopped_once(run_group, tmp_path_factory) -> tuple[Path, Result]:
    storage, link = (
        tmp_path_factory.mktemp("stopped"),
        RecordingLink(orders=STOP, order_after=("epoch", 1)),
    )
    return storage, run_group(2, run_job, storage, job(), link)[0]


@pytest.fixture
def stopped_in_warmup(stopped_once, tmp_path) -> Result:
    """One step after the batch has grown: three more until the rate is whole. The test's folder
    holds what the job has saved.
    """
    storage, result = stopped_once
    assert (result.outcome, result.link.of("checkpoint")[-1].step) == ("stopped", 47)
    shutil.copytree(storage, tmp_path, dirs_exist_ok=True)
    return result


def test_a_job_stopped_while_its_rate_follows_the_batch_ends_with_the_same_bits(
    grown, stopped_in_warmup, run_group, tmp_path
):
    resumed = run_group(2, run_job, tmp_path, job(), None, 2)[0]
    assert equal(resumed.parameters, grown.parameters)
    assert what_was_learned(stopped_in_warmup) + what_was_learned(resumed) == what_was_learned(
        grown
    )
    assert resumed.link.of("started")[0].steps_per_epoch == 6


@pytest.mark.parametrize("workers", [1, 3])
def test_a_resize_while_the_rate_follows_the_batch_bends_nothing(
    grown, stopped_in_warmup, run_group, tmp_path, workers
):
    """What PowerSGD sends is linear in the gradients, and a resize keeps the mean of the
    residuals.
    """
    resized = run_group(workers, run_job, tmp_path, job(), None, 2)[0]
    assert column(resized, "global_batch") == [256] * 5
    assert column(resized, "level_by_layer") == column(grown, "level_by_layer")[2:]
    for one, other in zip(resized.parameters, grown.parameters, strict=True):
        # fp32 sums in another order; measured 5e-7 after 29 steps
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def by_hand(run_group: Any, storage: Any, *overrides: Override) -> Result:
    """The job under overrides that people give when the record of epoch 0 is posted."""
    link = RecordingLink(
        orders=DesiredState(version=1, overrides=overrides), order_after=("epoch", 0)
    )
    return run_group(2, run_job, storage, job(), link)[0]


def test_people_set_the_batch_from_the_next_step_until_the_epoch_they_name(run_group, tmp_path):
    link = by_hand(
        run_group, tmp_path, Override(id="mine", target="batch", level=128, until=3)
    ).link
    assert [record.global_batch for record in link.of("epoch")][:4] == [64, 128, 128, 256]
    held = {record.decision.epoch: record.decision for record in link.of("decision")}
    assert (held[2].batch_override, held[2].batch_level, held[3].batch_override) == (
        "mine",
        None,
        None,
    )
    first = next(record for record in link.of("acks") if record.override_ids == ("mine",))
    assert (first.epoch, first.step, {ack.digest for ack in first.acks}) == (1, 24, {first.digest})
    # one step of 64 was taken before the switch: 1373 samples are left
    assert link.of("epoch")[1].step == 24 + 11
    assert link.of("epoch")[1].samples == 1437


def test_a_batch_that_changes_mid_epoch_loses_and_repeats_no_sample(run_group, tmp_path):
    result = run_group(2, run_job, tmp_path, job(window={"steps": 10}))[0]
    assert column(result, "samples") == [1437] * 7
    inside = [
        one.decision
        for one in result.link.of("decision")
        if "global batch becomes" in one.decision.reason
    ]
    assert [decision.global_batch for decision in inside] == [256]
    assert inside[0].step % 23 != 0
