"""The best checkpoint, and training that ends when a metric stops improving."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from accordion_workers.checkpoint.checkpoint_files import find_candidates
from accordion_workers.checkpoint.storage import LocalStorage
from accordion_workers.common.errors import TaskRaised
from accordion_workers.records.contract import DesiredState, JobSpec
from accordion_workers.spec.objective import ObjectiveSpec
from tests.distributed.code_jobs import run_own_script
from tests.distributed.loop_jobs import RecordingLink, run_job, synthetic
from tests.distributed.test_own_code import SPEC, order_of, script


def comparing(epochs: int = 9, *, keep: int = 1, every: int = 1, **objective: Any) -> JobSpec:
    """A job whose held-out loss falls with every epoch."""
    job = synthetic(epochs)
    return job.model_copy(
        update={
            "objective": ObjectiveSpec.model_validate({"metric": "loss", **objective}),
            "checkpoint": job.checkpoint.model_validate({"keep": keep, "every_epochs": every}),
        }
    )


def objectives(storage: Path) -> dict[int, float | None]:
    """The objectives of the checkpoints that exist, by epoch."""
    found = find_candidates(LocalStorage(storage / "checkpoints"), "job-1", lambda _: None)
    return {manifest.epoch: manifest.objective for manifest in found}


def epochs_of(link: RecordingLink) -> list[int]:
    return [record.epoch for record in link.of("epoch")]


def test_training_ends_early_and_keeps_the_best_checkpoint(run_group, tmp_path):
    job = comparing(mode="max", patience=2)
    results = run_group(2, run_job, tmp_path, job)
    assert [result.outcome for result in results] == ["ended early"] * 2
    link = results[0].link
    losses = [record.metrics["loss"] for record in link.of("epoch")]
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == 3
    assert objectives(tmp_path) == {1: losses[0], 3: losses[2]}
    assert [record.objective for record in link.of("checkpoint")] == losses
    assert (link.progresses[-1].step, link.progresses[-1].steps) == (12, 12)
    assert [line for line in link.lines if "training ends after epoch 2" in line]
    again = run_group(2, run_job, tmp_path, job, RecordingLink(), 2)
    assert {result.outcome for result in again} == {"ended early"}
    assert epochs_of(again[0].link) == [], "its newest checkpoint has the end"


@pytest.mark.parametrize("stop_after", [0, 1])
def test_a_pause_does_not_change_when_training_ends(run_group, tmp_path, stop_after):
    job = comparing(mode="max", patience=2)
    pause = RecordingLink(DesiredState(version=1, stop="pause"), ("epoch", stop_after))
    [first, _] = run_group(2, run_job, tmp_path, job, pause)
    assert first.outcome == "stopped"
    [second] = run_group(1, run_job, tmp_path, job, RecordingLink(), 2)
    assert second.outcome == "ended early"
    assert epochs_of(first.link) + epochs_of(second.link) == [0, 1, 2]
    assert set(objectives(tmp_path)) == {1, 3}


def test_every_improvement_is_saved_and_one_best_is_kept(run_group, tmp_path):
    job = comparing(5, mode="min", every=100)
    [result, _] = run_group(2, run_job, tmp_path, job)
    assert result.outcome == "completed"
    assert [record.epoch for record in result.link.of("checkpoint")] == [1, 2, 3, 4, 5]
    assert set(objectives(tmp_path)) == {5}


def test_an_improvement_does_not_replace_the_checkpoints_after_steps(run_group, tmp_path):
    job = comparing(3, mode="max", every=100)
    checkpoint = job.checkpoint.model_copy(update={"keep": 100, "every_steps": 4})
    job = job.model_copy(update={"checkpoint": checkpoint})
    [result, _] = run_group(2, run_job, tmp_path, job)
    assert [record.step for record in result.link.of("checkpoint")] == [4, 4, 8, 12]


def test_a_checkpoint_within_an_epoch_has_no_objective(run_group, tmp_path):
    job = comparing(2, mode="max", keep=100)
    steps = job.model_copy(
        update={"checkpoint": job.checkpoint.model_copy(update={"every_steps": 1})}
    )
    [result, _] = run_group(2, run_job, tmp_path, steps)
    saved = {record.step: record.objective for record in result.link.of("checkpoint")}
    assert [step for step, value in saved.items() if value is not None] == [4, 8]


def evaluating(job: JobSpec, every: int) -> JobSpec:
    training = job.training.model_copy(update={"evaluate_every_epochs": every})
    return job.model_copy(update={"training": training})


def test_every_other_epoch_and_the_last_are_evaluated(run_group, tmp_path):
    job = evaluating(comparing(5, mode="min", every=100), 2)
    [result, _] = run_group(2, run_job, tmp_path, job)
    records = result.link.of("epoch")
    assert [bool(record.metrics) for record in records] == [False, True, False, True, True]
    assert [record.epoch for record in result.link.of("checkpoint")] == [2, 4, 5]
    assert objectives(tmp_path) == {5: records[4].metrics["loss"]}


def test_an_epoch_without_an_evaluation_does_not_count_for_patience(run_group, tmp_path):
    job = evaluating(comparing(mode="max", patience=2, keep=100), 2)
    [result, _] = run_group(2, run_job, tmp_path, job)
    losses = [record.metrics.get("loss") for record in result.link.of("epoch")]
    assert result.outcome == "ended early"
    assert [loss is not None for loss in losses] == [False, True] * 3
    assert objectives(tmp_path) == dict(enumerate(losses, start=1))


PATIENT = {"objective": {"metric": "accuracy", "mode": "max", "patience": 1}}


def ending(value: str) -> dict[str, str]:
    """The script, giving a metric at the end of each epoch."""
    text = script()["train.py"]
    return {"train.py": text.replace('print("end"', f"    session.end_epoch({value})\nprint('end'")}


def test_the_epochs_of_a_script_end_early(run_group, tmp_path):
    training = {**SPEC["training"], "epochs": 9}
    for number, value in enumerate(("accuracy=0.5", "accuracy=epoch * -1.0")):
        (folder := tmp_path / str(number)).mkdir()
        job = order_of(folder, ending(value), training=training, **PATIENT)
        [result, _] = run_group(2, run_own_script, job)
        assert result.outcome == "ended early"
        assert epochs_of(result.link) == [0, 1]
        assert "end" in result.said, "what follows the loop is run"


def test_a_script_with_its_own_loop_ends_there(run_group, tmp_path):
    text = ending("accuracy=0.5")["train.py"].replace("session.epochs(99)", "range(99)")
    job = order_of(tmp_path, {"train.py": text}, **PATIENT)
    [result, _] = run_group(2, run_own_script, job)
    assert result.outcome == "ended early"
    assert epochs_of(result.link) == [0, 1]
    assert "end" not in result.said


def test_a_script_is_told_which_epochs_to_evaluate(run_group, tmp_path):
    text = ending("f1=0.1, **({'accuracy': 0.5} if session.evaluation_is_due else {})")
    training = {**SPEC["training"], "epochs": 5, "evaluate_every_epochs": 3}
    objective = {"objective": {"metric": "accuracy", "mode": "max"}}
    [result, _] = run_group(
        2, run_own_script, order_of(tmp_path, text, training=training, **objective)
    )
    assert result.outcome == "completed"
    due = [record.epoch for record in result.link.of("epoch") if "accuracy" in record.metrics]
    assert due == [2, 4]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [("", r"give it to session.end_epoch\(accuracy=...\)"), ("f1=0.5", "the evaluation has f1")],
)
def test_a_script_without_the_metric_fails(run_group, tmp_path, value, sentence):
    job = order_of(tmp_path, ending(value), **PATIENT)
    with pytest.raises(TaskRaised, match=sentence):
        run_group(2, run_own_script, job)


def test_a_metric_that_is_not_finite_is_no_improvement(run_group, tmp_path):
    job = order_of(tmp_path, ending("accuracy=float('nan')"), **PATIENT)
    [result, _] = run_group(2, run_own_script, job)
    assert (result.outcome, epochs_of(result.link)) == ("ended early", [0])
    assert all(not math.isnan(value or 0.0) for value in objectives(tmp_path / "storage").values())
