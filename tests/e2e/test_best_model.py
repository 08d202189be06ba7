"""On real Ray: a job that ends when it stops improving, and one that starts with its best model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from accordion_service.schemas.jobs import JobView
from tests.e2e.real_up import Up, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE = 3
SPEC: dict[str, Any] = {
    "task": {"name": "digits-mlp", "options": {"hidden": 64}},
    "workers": {"min": 1, "max": 2},
    "training": {"epochs": 1000, "optimizer": {"name": "adamw", "lr": 0.005}},
    "checkpoint": {"keep": 1, "every_epochs": 1000},
    "objective": {"metric": "accuracy", "mode": "max", "patience": PATIENCE},
}


def run(up: Up, spec: dict[str, Any]) -> JobView:
    job_id = up.client.submit(spec).id
    wait_for(lambda: up.client.job(job_id).ended_at is not None, lambda: up.client.job(job_id))
    return up.client.job(job_id)


def accuracies(up: Up, job_id: str) -> list[float]:
    return [row.metrics["accuracy"] for row in up.client.epochs(job_id).items]


def test_a_job_ends_early_and_another_one_starts_with_its_best_model(
    up: Up, tmp_path: Path
) -> None:
    job = run(up, SPEC)
    assert (job.status, job.reason) == ("SUCCEEDED", "STOPPED_IMPROVING"), job.message
    values = accuracies(up, job.id)
    best = values.index(max(values))
    assert len(values) == best + 1 + PATIENCE
    file = tmp_path / "best.safetensors"
    name = up.client.download_model(job.id, file, checkpoint="best")
    with safe_open(file, "pt") as opened:
        assert opened.metadata()["epoch"] == str(best + 1)
    kept = {path.name for path in (up.home / "storage" / job.id / "checkpoints").iterdir()}
    assert kept >= {name, up.client.checkpoints(job.id).items[-1].name}

    training = {"epochs": 1, "optimizer": {"name": "adamw", "lr": 1e-6}}
    warm = {"job": job.id, "checkpoint": "best"}
    second = run(up, {"task": SPEC["task"], "training": training, "warm_start": warm})
    assert second.status == "SUCCEEDED", second.message
    assert accuracies(up, second.id) == pytest.approx([values[best]], abs=0.02)
    assert any(
        f"starts with the model of checkpoint {name}" in line for line in up.client.logs(second.id)
    )
