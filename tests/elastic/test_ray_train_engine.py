"""What a job on the Ray Train engine has beyond one on plain actors, on real Ray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.train.v2._internal.state.state_actor import get_state_actor

from accordion_workers.records.contract import (
    DesiredState,
    EpochRecord,
    FailureRecord,
    PausedRecord,
    Size,
    Started,
)
from tests.distributed.code_jobs import packed
from tests.elastic.conftest import Start, kill, processes, wait_for
from tests.elastic.faults import Watched, job

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]
CONTROLLER = "ray::RayTrainController"
AFTER = 30


def begin(start: Start, folder: Path, **parts: Any) -> Watched:
    folder.mkdir()
    spec = job(folder, **parts)
    spec["task"]["name"] = "tests.elastic.reporting:ReportingDigits"
    spec["workers"] |= {"engine": "ray-train"}
    return Watched(start(spec, workers=spec["workers"]["max"]), folder)


def runs(watched: Watched) -> list[Any]:
    """Return the job's Ray Train runs as Ray's state API knows them, the newest last."""
    actor = get_state_actor()
    found = ray.get(actor.get_train_runs.remote()).values() if actor is not None else ()
    own = [run for run in found if watched.life.launch.job_id in run.name]
    return sorted(own, key=lambda run: run.start_time_ns)


def pids(watched: Watched) -> set[int]:
    """Return the process ids of the newest run's workers."""
    attempts = ray.get(get_state_actor().get_train_run_attempts.remote())[runs(watched)[-1].id]
    return {worker.pid for attempt in attempts.values() for worker in attempt.workers}


def contexts(watched: Watched) -> list[dict[str, list[int]]]:
    files = watched.folder.glob("context-*")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_ray_trains_controller_killed(start: Start, tmp_path: Path) -> None:
    watched = begin(start, tmp_path / "steps")
    watched.reach(AFTER)
    workers = set(processes("ray::Worker"))
    wait_for(lambda: pids(watched) == workers)
    watched.fault()
    kill(CONTROLLER)
    at = watched.step()
    wait_for(lambda: watched.step() > at, watched.life.story)
    wait_for(lambda: len(runs(watched)) >= 2 and pids(watched) == workers)
    assert runs(watched)[-1].status == "RUNNING"
    watched.survived("Ray Train's controller kill -9")
    assert watched.life.all(FailureRecord) == []
    assert len(watched.life.all(Started)) == 1
    wait_for(lambda: runs(watched)[-1].status == "FINISHED")


def test_scripts_see_their_present_group_and_their_reports_reach_the_records(
    start: Start, tmp_path: Path
) -> None:
    watched = begin(start, tmp_path / "steps", workers={"min": 1})
    watched.reach(AFTER)
    watched.life.order(DesiredState(version=1, size=Size(min=1, target=1)))
    watched.wait_for_sizes(1)
    watched.reach(watched.step() + 25)
    watched.life.order(DesiredState(version=2, stop="pause"))
    wait_for(lambda: watched.life.look() or watched.life.all(PausedRecord), watched.life.story)
    told = contexts(watched)
    assert all(line["told"] == line["group"] for line in told)
    assert {tuple(line["told"][:2]) for line in told} == {(0, 2), (1, 2), (0, 1)}
    epochs: list[EpochRecord] = watched.life.all(EpochRecord)
    assert [epoch.metrics["reported_step"] for epoch in epochs] == [
        epoch.step - 1 for epoch in epochs
    ]
    assert {epoch.metrics["reported_rank"] for epoch in epochs} == {0.0}
    wait_for(lambda: runs(watched)[-1].status == "ABORTED")


SCRIPT = """
import ray.train
import ray.train.collective
import ray.train.torch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accordion_workers import session

inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
loader = DataLoader(TensorDataset(inputs), batch_sampler=session.batches(len(inputs)))
model = ray.train.torch.prepare_model(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session.attach(model, optimizer)
for epoch in session.epochs(3):
    if epoch == 2:
        raise ValueError("the script raises here")
    for (rows,) in loader:
        optimizer.zero_grad()
        session.backward(model(rows).square().mean())
        session.step()
    rank = ray.train.get_context().get_world_rank()
    told = ray.train.collective.broadcast_from_rank_zero(rank + 10)
    ray.train.collective.barrier()
    ray.train.report({"told": told, "workers": ray.train.get_context().get_world_size()})
"""


def test_a_script_uses_ray_trains_functions_and_its_error_is_the_runs(
    start: Start, tmp_path: Path
) -> None:
    code, sha256 = packed(tmp_path, {"train.py": SCRIPT})
    script = {"name": "script", "options": {"file": "train.py"}}
    spec = {
        "task": script,
        "code": sha256,
        "max_failures": 0,
        "workers": {"min": 2, "engine": "ray-train"},
    }
    watched = Watched(start(spec, code=code), tmp_path)
    assert watched.life.end().status == "FAILED"
    told = [epoch.metrics for epoch in watched.life.all(EpochRecord)]
    assert told == [{"told": 10.0, "workers": 2.0}] * 2, watched.life.story()
    wait_for(lambda: runs(watched)[-1].status == "ERRORED")
    assert "the script raises here" in runs(watched)[-1].status_detail
