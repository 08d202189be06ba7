"""Tasks with data, through the whole loop: job files made small, real data where they are there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from accordion_workers.records.contract import JobSpec
from accordion_workers.spec.local_steps_spec import LocalStepsSpec
from tests.distributed.loop_jobs import Result, run_job, spec

JOBS = Path(__file__).parents[2] / "deploy" / "jobs"
TEXT = "".join(f"{number} green bottles hanging on the wall\n" for number in range(400))


def job_file(
    name: str, data: Path, options: Mapping[str, Any], training: Mapping[str, Any]
) -> JobSpec:
    """A job of deploy/jobs on less of its data."""
    job = yaml.safe_load((JOBS / name).read_text())
    job["task"]["options"] |= {"data": str(data), **options}
    job["training"] |= training
    return JobSpec.model_validate(job)


def losses(result: Result) -> list[float]:
    return [epoch.loss for epoch in result.link.of("epoch")]


def test_a_small_resnet_learns_pictures_by_heart(run_group, tmp_path, require):
    options = {"samples": 320, "eval_samples": 100, "augment": False}
    training = {"epochs": 6, "global_batch": 32, "micro_batch": 16}
    job = job_file("cifar-small.yaml", require.data("cifar10-subset.zip"), options, training)
    result = run_group(2, run_job, tmp_path, job)[0]
    assert losses(result)[-1] < losses(result)[0] - 0.2  # measured 2.46 to 2.04; 2.3 knows nothing


def test_a_small_transformer_learns_to_spell_on_real_text(run_group, tmp_path, require):
    data = require.data("tinyshakespeare") / "input.txt"
    job = job_file("lm-small.yaml", data, {"samples": 1000, "eval_samples": 100}, {"epochs": 2})
    result = run_group(2, run_job, tmp_path, job)[0]
    assert (
        losses(result)[-1] < 3.0
    )  # 4.17 knows nothing, 3.31 how frequent each character is; measured 2.80
    assert result.link.of("epoch")[-1].metrics["loss"] < 3.0


def test_a_small_transformer_learns_to_spell_with_local_steps(run_group, tmp_path, require):
    data = require.data("tinyshakespeare") / "input.txt"
    options = {"samples": 1000, "eval_samples": 100}
    job = job_file("lm-local-steps.yaml", data, options, {"epochs": 2})
    job = job.model_copy(update={"local_steps": LocalStepsSpec(low=8, high=16, start_steps=32)})
    result = run_group(2, run_job, tmp_path, job)[0]
    assert losses(result)[-1] < 3.0  # as above; measured 2.68
    assert result.link.of("epoch")[-1].metrics["loss"] < 3.0
    start, last = [epoch.bytes.payload for epoch in result.link.of("epoch")]
    assert last < start / 5


def test_a_small_lstm_learns_which_words_are_frequent_on_real_text(run_group, tmp_path, require):
    options = {"vocabulary": 1000, "width": 32, "layers": 1, "samples": 1000, "eval_samples": 100}
    training: dict[str, Any] = {"epochs": 2, "global_batch": 32, "micro_batch": 8}
    training["warmup"] = {"epochs": 1}
    # With the file's rate of 10, two epochs end between 50 and 170, as rounding has it.
    training["optimizer"] = {"name": "sgd", "lr": 2.0, "momentum": 0.9, "nesterov": True}
    job = job_file("lm-lstm.yaml", require.data("wikitext2-valid-test"), options, training)
    result = run_group(2, run_job, tmp_path, job)[0]
    first, last = losses(result)
    assert last < first - 0.3  # 6.9 knows nothing; measured 5.37 and 4.40
    # measured 48 to 53 of 1,000 words
    assert result.link.of("epoch")[-1].metrics["perplexity"] < 100


@pytest.fixture
def text(tmp_path) -> str:
    (tmp_path / "text.txt").write_text(TEXT)
    return str(tmp_path / "text.txt")


def language_job(text: str, eval_samples: int) -> JobSpec:
    options = {
        "data": text,
        "tokens": "chars",
        "sequence": 16,
        "width": 16,
        "layers": 1,
        "samples": 200,
    }
    options |= {"eval_samples": eval_samples, "dropout": 0.2}
    return spec("lm-lstm", options, training={"epochs": 1}, compression={"method": "none"})


@pytest.mark.parametrize("eval_samples", [50, 10])
def test_perplexity_does_not_depend_on_who_evaluates_which_part(
    run_group, tmp_path, text, eval_samples
):
    """Three workers share four pieces, of which one is short; then one piece, and two of them have
    nothing.
    """
    job = language_job(text, eval_samples)
    ends = [
        run_group(n, run_job, tmp_path / str(n), job)[0].link.of("epoch")[0].metrics for n in (1, 3)
    ]
    assert ends[0] == pytest.approx(
        ends[1], rel=1e-4
    )  # fp32 sums in another order, grown by four steps
    assert ends[1]["perplexity"] == pytest.approx(math.exp(ends[1]["loss"]), rel=1e-9)
