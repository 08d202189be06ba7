"""What is told of a job before it runs is what it does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from accordion_workers.records.contract import JobSpec
from accordion_workers.simulation.simulation import Observer, Simulation
from accordion_workers.training.byte_budget import CountedModel, resolve_budget
from accordion_workers.training.planned_run import PlannedRun, list_assumptions, plan_run
from accordion_workers.user_code.load_task import load_task
from tests.distributed.loop_jobs import spec

QSGD = {"method": "qsgd", "low": {"bits": 8}, "high": {"bits": 4}}
DROPS = {"epochs": 5, "lr_decay": {"at": [2, 4], "factor": 0.5}}
COSINE = {"epochs": 4, "lr_decay": {"shape": "cosine"}, "warmup": {"epochs": 1}}
CASES = {
    "levels by rate, saved within epochs": spec(
        compression=QSGD,
        policy={"name": "by_rate"},
        training=DROPS,
        local_steps={"low": 3, "high": 9, "start_steps": 30},
        checkpoint={"every_steps": 10},
    ),
    "a table of levels, after a warm-up": spec(
        compression={**QSGD, "warm_up": {"steps": 40}},
        policy={"name": "scheduled", "options": {"table": {"0": "low", "2": "high"}}},
        training=COSINE,
        local_steps={"low": 4, "high": 64, "power": 2.0},
    ),
    "windows in steps": spec(
        compression={"method": "half"},
        policy={"window": {"steps": 7}},
        training={"epochs": 2},
        local_steps={"low": 5},
    ),
    "a budget": spec(
        compression=QSGD,
        policy={"name": "fixed"},
        training=DROPS,
        local_steps={"budget": 20, "start_steps": 8},
    ),
    "an exchange in every step": spec(
        compression={"method": "powersgd"}, policy={"name": "legacy"}, training=COSINE
    ),
}


MESSAGE_BYTES = 2000
"""More than a decision about three layers and its acknowledgements take."""


def plan(job: JobSpec, workers: int) -> PlannedRun:
    task = load_task(job.task.name, job.task.options)
    samples = len(task.train_data())
    job = resolve_budget(job, task.model(), samples=samples)
    (assumed,) = list_assumptions(job)
    return plan_run(job, assumed, CountedModel(task.model(), world_size=workers), samples=samples)


def simulate(job: JobSpec, folder, workers: int) -> list[Any]:
    """Return the records of decisions and epochs."""
    posted: list[Any] = []
    told = Observer(progress=lambda _: None, record=posted.append, log=lambda _: None)
    Simulation(job, folder, workers=workers, device="cpu", observer=told).run()
    return [payload for payload in posted if payload.kind in {"decision", "epoch"}]


def epochs_of(records: list[Any]) -> list[Any]:
    return [record for record in records if record.kind == "epoch"]


def gradient_bytes(epoch: Any) -> int:
    return int(epoch.bytes.wire - epoch.bytes.control_wire)


def with_workers(job: JobSpec, workers: int) -> JobSpec:
    limits = job.workers.model_copy(update={"min": 1, "max": workers})
    return job.model_copy(update={"workers": limits})


@pytest.mark.parametrize(
    ("name", "workers"), [(name, 2 + index % 2) for index, name in enumerate(CASES)]
)
def test_a_job_does_in_its_epochs_what_its_plan_told(name, workers, tmp_path):
    job = with_workers(CASES[name], workers)
    planned, records = plan(job, workers), simulate(job, tmp_path, workers)
    epochs = epochs_of(records)
    rows = [row for row in planned.epochs for _ in range(row.epochs)]
    assert [row.sent_bytes for row in rows] == [gradient_bytes(epoch) for epoch in epochs]
    assert planned.uncompressed_bytes == sum(epoch.bytes.dense_wire for epoch in epochs)
    assert [row.local_steps[-1] for row in rows] == [epoch.local_steps for epoch in epochs]
    # Decisions and acknowledgements, of which the last epoch's decision has no record.
    beside = sum(epoch.bytes.wire for epoch in epochs) - planned.sent_bytes
    number = 1 + sum(record.kind == "decision" for record in records)
    assert 100 * number < beside < MESSAGE_BYTES * number
    for row in planned.epochs:
        last = row.epoch + row.epochs - 1
        assert (row.lr, row.last_lr) == (epochs[row.epoch].lr, epochs[last].lr)
        assert row.layers_by_level in ({}, Counter(epochs[last].level_by_layer.values()))


def test_the_rounds_of_a_budget_are_the_shortest_that_keep_to_it(tmp_path):
    job = with_workers(CASES["a budget"], 3)
    epochs = epochs_of(simulate(job, tmp_path, 3))
    low = epochs[0].local_steps
    planned = plan(job, 3)
    assert planned.uncompressed_bytes / planned.sent_bytes >= 20
    rounds = {"low": low - 1, "high": 8 * (low - 1), "start_steps": 8}
    shorter = plan(JobSpec.model_validate({**job.model_dump(), "local_steps": rounds}), 3)
    assert shorter.uncompressed_bytes / shorter.sent_bytes < 20


def test_gradients_in_several_buckets_differ_by_the_rounding_of_their_bytes(tmp_path):
    """DDP's first bucket is smaller than that of changes, so parts are rounded elsewhere."""
    parts = {"compression": {"method": "half"}, "policy": {"name": "fixed"}}
    job = with_workers(spec("synthetic", {"samples": 256, "width": 700, "depth": 2}, **parts), 3)
    planned, epochs = plan(job, 3), epochs_of(simulate(job, tmp_path, 3))
    sent = planned.sent_bytes - planned.control_bytes
    assert sent == pytest.approx(sum(map(gradient_bytes, epochs)), rel=1e-5)
