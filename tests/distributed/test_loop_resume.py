"""Saved, loaded, continued equals never stopped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from accordion_workers.common.errors import TaskRaised
from accordion_workers.records.contract import DesiredState
from tests.distributed.loop_jobs import (
    RecordingLink,
    Result,
    equal,
    run_job,
    spec,
    synthetic,
    what_was_learned,
)
from tests.unit.workers import datasets

POWERSGD = spec(training={"epochs": 4, "lr_decay": {"at": [3]}}, policy={"window": {"epochs": 1}})
STOP_IN_EPOCH_1 = RecordingLink(
    orders=DesiredState(version=1, stop="cancel"), order_after=("epoch", 0)
)
STOP_IN_EPOCH_2 = RecordingLink(
    orders=DesiredState(version=1, stop="cancel"), order_after=("epoch", 1)
)


@pytest.fixture(scope="module")
def undisturbed(run_group, tmp_path_factory) -> Result:
    return run_group(2, run_job, tmp_path_factory.mktemp("undisturbed"), POWERSGD)[0]


@pytest.fixture(scope="module")
def stopped_once(run_group, tmp_path_factory) -> tuple[Path, Result]:
    storage = tmp_path_factory.mktemp("stopped")
    return storage, run_group(2, run_job, storage, POWERSGD, STOP_IN_EPOCH_2)[0]


@pytest.fixture
def stopped(stopped_once, tmp_path) -> Result:
    """The stopped job; the test's folder holds what it has saved."""
    storage, result = stopped_once
    shutil.copytree(storage, tmp_path, dirs_exist_ok=True)
    return result


@pytest.fixture(scope="module")
def resumed(stopped_once, run_group, tmp_path_factory) -> Result:
    storage = shutil.copytree(stopped_once[0], tmp_path_factory.mktemp("resumed") / "storage")
    return run_group(2, run_job, storage, POWERSGD, None, 2)[0]


def test_a_stopped_job_has_saved_in_the_middle_of_the_epoch(stopped, tmp_path):
    assert stopped.outcome == "stopped"
    assert [record.epoch for record in stopped.link.of("epoch")] == [0, 1]
    assert stopped.link.of("checkpoint")[-1].step == 2 * 23 + 1


def test_a_resumed_job_ends_with_the_bits_of_one_that_was_never_stopped(
    undisturbed, stopped, resumed
):
    assert equal(resumed.parameters, undisturbed.parameters)
    assert what_was_learned(stopped) + what_was_learned(resumed) == what_was_learned(undisturbed)


@pytest.fixture
def text(tmp_path) -> str:
    return str(datasets.folder(tmp_path / "text", {"input.txt": datasets.TEXT.encode()}))


@pytest.mark.parametrize(
    ("workers", "task"), [(3, "lm-lstm"), (3, "digits-mlp"), (4, "lm-transformer")]
)
def test_a_resumed_job_has_the_bits_of_an_undisturbed_one_from_three_workers_on(
    run_group, tmp_path, text, workers, task
):
    """Uncompressed, with models of several buckets, which exchange plans group anew."""
    sizes = {
        "data": text,
        "tokens": "chars",
        "sequence": 8,
        "width": 160,
        "layers": 2,
        "samples": 192,
    }
    options = {"hidden": 4096} if task == "digits-mlp" else sizes
    job = spec(task, options, compression={"method": "none"})
    undisturbed = run_group(workers, run_job, tmp_path / "a", job)[0]
    run_group(workers, run_job, tmp_path / "b", job, STOP_IN_EPOCH_1)
    resumed = run_group(workers, run_job, tmp_path / "b", job, None, 2)[0]
    assert [record.epoch for record in resumed.link.of("epoch")] == [1]
    assert equal(resumed.parameters, undisturbed.parameters)


def test_a_resumed_job_says_where_it_went_on(stopped, resumed):
    (started,) = resumed.link.of("started")
    assert (started.epoch, started.step) == (2, 47)
    assert started.resumed_from == stopped.link.of("checkpoint")[-1].name


def test_a_job_does_not_resume_with_another_number_of_samples(run_group, tmp_path):
    run_group(2, run_job, tmp_path, synthetic(samples=64), STOP_IN_EPOCH_1)
    with pytest.raises(TaskRaised) as caught:
        run_group(2, run_job, tmp_path, synthetic(samples=4), None, 2)
    told = "has 4 training samples and 256 held-out ones, and its checkpoint was saved with 64"
    assert told in caught.value.error


def test_bytes_since_the_job_began_go_on_where_they_were(undisturbed, stopped, resumed):
    dense = [
        sum(record.bytes.dense for record in run.link.of("epoch"))
        for run in (stopped, resumed, undisturbed)
    ]
    assert dense[0] + dense[1] == dense[2]


def test_a_torn_checkpoint_costs_its_steps_and_nothing_else(
    undisturbed, stopped, run_group, tmp_path
):
    newest = max((tmp_path / "checkpoints").iterdir())
    (newest / "rank-1.pt").write_bytes(b"torn")
    resumed = run_group(2, run_job, tmp_path, POWERSGD, None, 2)[0]
    assert resumed.link.of("started")[0].step == 2 * 23
    assert "rank-1.pt does not match its checksum" in resumed.link.lines[0]
    assert equal(resumed.parameters, undisturbed.parameters)


def test_a_job_without_any_good_checkpoint_begins_anew(undisturbed, stopped, run_group, tmp_path):
    for manifest in (tmp_path / "checkpoints").glob("*/manifest.json"):
        manifest.unlink()
    resumed = run_group(2, run_job, tmp_path, POWERSGD, None, 2)[0]
    assert resumed.link.of("started")[0].resumed_from is None
    assert equal(resumed.parameters, undisturbed.parameters)


def test_a_finished_job_that_is_started_again_has_nothing_to_do(run_group, tmp_path):
    job = synthetic()
    first = run_group(2, run_job, tmp_path, job)[0]
    again = run_group(2, run_job, tmp_path, job, None, 2)[0]
    assert (again.outcome, again.link.of("epoch")) == ("completed", [])
    assert equal(again.parameters, first.parameters)


@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers_goes_on_and_counts_every_sample(
    stopped, run_group, tmp_path, workers
):
    resumed = run_group(workers, run_job, tmp_path, POWERSGD, None, 2)[0]
    epochs = resumed.link.of("epoch")
    assert [(record.epoch, record.samples, record.world_size) for record in epochs] == [
        (2, 1437, workers),
        (3, 1437, workers),
    ]
    assert epochs[-1].metrics["accuracy"] > 0.9


def test_only_as_many_checkpoints_stay_as_the_job_keeps(stopped, tmp_path):
    assert len(list((tmp_path / "checkpoints").iterdir())) == POWERSGD.checkpoint.keep


def test_the_mean_loss_of_an_epoch_survives_a_change_of_workers_in_its_middle(run_group, tmp_path):
    """Without compression the mathematics does not depend on the number of workers."""
    job = spec(training={"epochs": 3}, compression={"method": "none"})
    undisturbed = run_group(2, run_job, tmp_path / "a", job)[0]
    run_group(2, run_job, tmp_path / "b", job, STOP_IN_EPOCH_2)
    resumed = run_group(1, run_job, tmp_path / "b", job, None, 2)[0]
    # fp32 sums in another order: a few thousand additions at 6e-8 each, grown by 20 steps of
    # training
    assert resumed.link.of("epoch")[0].loss == pytest.approx(
        undisturbed.link.of("epoch")[2].loss, rel=1e-4
    )


def test_a_window_of_steps_left_open_at_a_stop_closes_at_the_same_step_after_resume(
    run_group, tmp_path
):
    job = spec(training={"epochs": 3}, policy={"window": {"steps": 10}})
    undisturbed = run_group(2, run_job, tmp_path / "a", job)[0]
    run_group(2, run_job, tmp_path / "b", job, STOP_IN_EPOCH_2)
    resumed = run_group(2, run_job, tmp_path / "b", job, None, 2)[0]
    assert (
        resumed.link.of("decision")
        == undisturbed.link.of("decision")[-len(resumed.link.of("decision")) :]
    )
    assert what_was_learned(resumed) == what_was_learned(undisturbed)[2:]
