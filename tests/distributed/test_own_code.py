"""Code of people's own in worker processes: the examples of deploy/jobs, and what a script may do."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from accordion.messages import Override
from tests.distributed.code_jobs import launch, packed, packed_folder, run_own_script, run_own_task, run_without_us
from tests.distributed.loop_jobs import RecordingLink
from workers.contract import Launch, Orders
from workers.errors import LossNotFinite, TaskRaised

JOBS = Path(__file__).parents[2] / "deploy" / "jobs"
MOST_ADDED_LINES = 10
SCRIPT = """
import sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from workers.session import session

session.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(100, 8)
seen = {"rows": []}

class Seen:
    def state_dict(self):
        return {"rows": list(seen["rows"])}
    def load_state_dict(self, state):
        seen["rows"] = list(state["rows"])

batches = session.batches(len(inputs))
model = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session.attach(model, optimizer, seen=Seen())
for epoch in session.epochs(99):
    for rows in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[rows]), inputs[rows].tanh())
        session.backward(FACTOR * loss)
        BODY
        session.step()
        seen["rows"] += rows if rows != [] else []
    print(epoch, sorted(seen["rows"]))
    seen["rows"] = []
"""
"""A job of 100 samples in four batches of at most 32; it prints the samples that this rank has read, epoch by epoch."""
SPEC = {"task": {"name": "script"}, "training": {"epochs": 3, "global_batch": 32, "micro_batch": 8}}


def script(body: str = "pass", factor: str = "1.0") -> dict[str, str]:
    return {"train.py": SCRIPT.replace("BODY", body).replace("FACTOR", factor)}


def order_of(folder: Path, sources: dict[str, str], **changes: Any) -> Launch:
    return launch(folder / "storage", {**SPEC, **changes}, packed(folder, sources))


def example(name: str, folder: Path) -> Launch:
    spec = yaml.safe_load((JOBS / name / "job.yaml").read_text())
    return launch(folder / "storage", spec, packed_folder(folder, JOBS / name / "code"))


def test_an_ordinary_script_becomes_a_job_by_a_few_lines():
    plain = (JOBS / "own-script" / "plain.py").read_text().splitlines()
    ours = (JOBS / "own-script" / "code" / "train.py").read_text().splitlines()
    added = [line for line in difflib.ndiff(plain, ours) if line.startswith("+ ") and line[2:].strip()]
    assert len(added) <= MOST_ADDED_LINES
    assert all("session" in line for line in added)


def test_the_example_of_a_script_trains_as_a_job(run_group, tmp_path):
    result = run_group(2, run_own_script, example("own-script", tmp_path))[0]
    assert result.outcome == "completed"
    (started,) = result.link.of("started")
    assert (started.world_size, started.steps_per_epoch, started.resumed_from) == (2, 23, None)
    epochs = result.link.of("epoch")
    assert [record.epoch for record in epochs] == list(range(10))
    assert all(record.samples == 1437 for record in epochs)
    assert epochs[-1].metrics["accuracy"] > 0.9
    assert [round(record.lr, 6) for record in epochs] == [0.1] * 6 + [0.01] * 2 + [0.001] * 2
    assert epochs[-1].bytes.payload < epochs[-1].bytes.dense / 2
    assert result.link.of("checkpoint")[-1].epoch == 10


def test_the_example_of_a_script_runs_without_a_job_too(run_group):
    file = str(JOBS / "own-script" / "code" / "train.py")
    first, second = run_group(2, run_without_us, file, ["--epochs", "2"])
    assert re.fullmatch(r"epoch 0: accuracy 0\.\d+\nepoch 1: accuracy 0\.\d+\n", first)
    assert second == ""


def test_the_example_of_a_task_trains_as_a_job(run_group, tmp_path):
    result = run_group(2, run_own_task, example("own-task", tmp_path))[0]
    assert result.outcome == "completed"
    assert result.link.of("epoch")[-1].metrics["accuracy"] > 0.9


def rows_of(results: list[Any]) -> dict[int, list[int]]:
    """By epoch, the samples that all ranks together have trained on."""
    seen: dict[int, list[int]] = {}
    for result in results:
        for line in result.link.lines[-1].splitlines():
            epoch, _, rows = line.partition(" ")
            seen.setdefault(int(epoch), []).extend(int(row) for row in rows.strip("[]").split(", "))
    return seen
