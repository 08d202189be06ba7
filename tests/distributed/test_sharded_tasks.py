"""Jobs with a task whose workers hold the model together (`parallelism.shard`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from accordion_workers.checkpoint.saved_model import read_model
from accordion_workers.checkpoint.storage import LocalStorage
from accordion_workers.records.contract import DesiredState, JobSpec
from accordion_workers.simulation.simulated_spec import build_simulated_spec
from accordion_workers.simulation.simulation import Observer, Simulation
from accordion_workers.training.byte_budget import CountedModel
from accordion_workers.training.loop import train_job
from accordion_workers.training.planned_run import list_assumptions, plan_run
from accordion_workers.user_code.load_task import load_task
from tests.distributed.loop_jobs import RecordingLink, context

SHARDED = {"parallelism": {"shard": 2}}
STOP_IN_EPOCH_1 = DesiredState(version=1, stop="pause")


def job(**parts: Any) -> JobSpec:
    """Three epochs of eight steps, of which the last is short."""
    training = {"epochs": 3, "global_batch": 192, "micro_batch": 48, **parts.pop("training", {})}
    return JobSpec.model_validate(
        {
            "task": {"name": "digits-mlp", "options": {"hidden": 33}},
            "workers": {"min": 4, "max": 4, "balance": False},
            "compression": {"method": "none"},
            "training": training,
            **parts,
        }
    )


def run(rank: int, storage: Path, spec: JobSpec, stops: bool = False, generation: int = 1) -> Any:
    """Train, or stop in the second epoch; return the outcome and rank 0's link."""
    link = RecordingLink(STOP_IN_EPOCH_1 if stops else DesiredState(), ("epoch", 0))
    outcome = train_job(context(rank, storage, spec, link, generation))
    link.callback = None
    return outcome, link if rank == 0 else None


def model_of(storage: Path) -> dict[str, torch.Tensor]:
    kept = LocalStorage(storage / "checkpoints")
    return dict(read_model(kept, sorted(kept.names(), reverse=True), job_id="job-1").state)


def assert_close(ours: Path, theirs: Path, **tolerance: float) -> None:
    present, expected = model_of(ours), model_of(theirs)
    assert present.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(present[name], value, **tolerance)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"training": {"micro_batch": 17, "clip_norm": 0.5}},  # workers have unlike numbers of them
        {"training": {"precision": "bf16"}},
        {"training": {"optimizer": {"name": "adamw", "lr": 0.01}}},
        {"workers": {"min": 4, "max": 4, "balance": True}},
    ],
)
def test_shards_are_no_difference_to_what_is_learned(run_group, tmp_path, parts):
    (outcome, sharded), *_ = run_group(4, run, tmp_path / "a", job(**SHARDED, **parts))
    (_, whole), *_ = run_group(4, run, tmp_path / "b", job(**parts))
    assert outcome == "completed"
    loose = 0.02 if "precision" in parts.get("training", {}) else 1e-4
    assert_close(tmp_path / "a", tmp_path / "b", rtol=loose, atol=loose / 10)
    for ours, theirs in zip(sharded.of("epoch"), whole.of("epoch"), strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=loose)
        assert ours.metrics == pytest.approx(theirs.metrics, abs=loose)
    # A worker exchanges its part only.
    assert ours.bytes.dense < 0.6 * theirs.bytes.dense


@pytest.mark.parametrize("kind", ["Tied", "ListedTwice"])
def test_blocks_that_have_a_part_in_common_learn_as_unsharded_ones(run_group, tmp_path, kind):
    task = {"name": f"{__package__}.loop_tasks:{kind}", "options": {"hidden": 32}}
    (outcome, _), *_ = run_group(4, run, tmp_path / "a", job(**SHARDED, task=task))
    run_group(4, run, tmp_path / "b", job(task=task))
    assert outcome == "completed"
    assert_close(tmp_path / "a", tmp_path / "b", rtol=1e-4, atol=1e-5)


LOCAL = {"local_steps": {"low": 3, "outer": "nesterov"}}


def test_local_steps_are_those_of_whole_replicas(run_group, tmp_path):
    run_group(4, run, tmp_path / "a", job(**SHARDED, **LOCAL))
    workers = {"min": 2, "max": 2, "balance": False}
    run_group(2, run, tmp_path / "b", job(**LOCAL, workers=workers))
    assert_close(tmp_path / "a", tmp_path / "b", rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["none", "topk"])
def test_a_simulation_of_replicas_learns_what_the_job_learns(run_group, tmp_path, method):
    spec = job(**SHARDED, compression={"method": method, "low": {}, "high": {}})
    (_, ours), *_ = run_group(4, run, tmp_path / "a", spec)
    given = build_simulated_spec(spec.model_dump(mode="json"), workers=4, seed=None)
    link = RecordingLink()
    observer = Observer(progress=link.progress, record=link.post, log=link.log)
    simulated = JobSpec.model_validate(given)
    assert (simulated.workers.max, simulated.parallelism) == (2, None)
    Simulation(simulated, tmp_path / "b", workers=2, device="cpu", observer=observer).run()
    loose = 1e-4 if method == "none" else 0.1  # each worker picks the largest values of its part
    for one, other in zip(ours.of("epoch"), link.of("epoch"), strict=True):
        assert one.loss == pytest.approx(other.loss, rel=loose)
        assert one.bytes.dense == pytest.approx(other.bytes.dense / 2, rel=0.05)


def test_rounds_of_a_budget_are_those_of_replicas(run_group, tmp_path):
    budget = {"local_steps": {"budget": 4.0}, "policy": {"name": "fixed"}}
    (_, ours), *_ = run_group(4, run, tmp_path / "a", job(**SHARDED, **budget))
    workers = {"min": 2, "max": 2, "balance": False}
    (_, whole), *_ = run_group(2, run, tmp_path / "b", job(**budget, workers=workers))
    found, expected = (
        next(line for line in link.lines if "local_steps.budget" in line).partition(", planned")[0]
        for link in (ours, whole)
    )
    assert found == expected
    last = ours.of("epoch")[-1].bytes
    assert last.dense_wire >= 4 * last.wire


@pytest.mark.parametrize("method", ["powersgd", "qsgd"])
def test_a_plan_tells_the_bytes_of_the_workers_of_a_replica(run_group, tmp_path, method):
    digits = {"name": "digits-mlp", "options": {"hidden": 32}}  # all parts are equally large
    parts = {"compression": {"method": method}, "policy": {"name": "fixed"}, "task": digits}
    spec = job(**SHARDED, **parts)
    (_, link), *_ = run_group(4, run, tmp_path, spec)
    task = load_task("digits-mlp", digits["options"])
    model = CountedModel(task.model(), world_size=2, shards=2)
    (assumed,) = list_assumptions(spec)
    planned = plan_run(spec, assumed, model, samples=len(task.train_data()))
    found = 2 * sum(one.bytes.wire - one.bytes.control_wire for one in link.of("epoch"))
    # Each worker of a real job rounds its bytes of qsgd by itself.
    assert found == pytest.approx(planned.sent_bytes - planned.control_bytes, rel=0.01)


def test_a_resumed_job_has_the_bits_of_an_uninterrupted_one(run_group, tmp_path):
    spec = job(**SHARDED, compression={"method": "powersgd"})
    stopped = run_group(4, run, tmp_path / "a", spec, True)
    assert {outcome for outcome, _ in stopped} == {"stopped"}
    (_, link), *_ = run_group(4, run, tmp_path / "a", spec, False, 2)
    assert link.of("started")[0].resumed_from is not None
    run_group(4, run, tmp_path / "b", spec)
    assert_close(tmp_path / "a", tmp_path / "b", rtol=0, atol=0)


def test_a_job_goes_on_with_another_number_of_replicas(run_group, tmp_path):
    spec = job(**SHARDED)
    run_group(4, run, tmp_path / "a", spec, True)
    (outcome, link), *_ = run_group(2, run, tmp_path / "a", spec, False, 2)
    assert (outcome, link.of("started")[0].world_size) == ("completed", 2)
    run_group(4, run, tmp_path / "b", spec)
    assert_close(tmp_path / "a", tmp_path / "b", rtol=1e-3, atol=1e-4)
