"""A job on real Ray that was cancelled, is retried, and is deleted in the end."""

from __future__ import annotations

from typing import Any

import pytest

from accordion_service.schemas.overrides import OverrideRequest
from tests.e2e.real_up import Up, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
EPOCHS = 16
SPEC: dict[str, Any] = {
    "task": {"name": "digits-mlp", "options": {"min_step_s": 0.03}},
    "workers": {"min": 1, "max": 2},
    "training": {"epochs": EPOCHS},
    "compression": {"method": "half"},
    "local_steps": {"low": 2, "high": 8},
}


def test_a_cancelled_job_is_retried_from_its_checkpoint_and_then_deleted(up: Up) -> None:
    job_id = up.client.submit(SPEC).id
    wait_for(lambda: len(up.client.epochs(job_id).items) >= 2, lambda: up.client.job(job_id))
    up.client.override(job_id, OverrideRequest(target="local_steps", level=8))
    wait_for(lambda: up.client.overrides(job_id).items[0].state == "APPLIED")
    assert up.client.overrides(job_id).items[0].acks == 2
    up.client.cancel(job_id)
    wait_for(lambda: up.client.job(job_id).ended_at is not None, lambda: up.client.job(job_id))
    trained = len(up.client.epochs(job_id).items)
    assert (up.client.job(job_id).status, trained < EPOCHS) == ("CANCELLED", True)
    up.client.retry(job_id)
    wait_for(lambda: up.client.job(job_id).ended_at is not None, lambda: up.client.job(job_id))
    job = up.client.job(job_id)
    assert (job.status, job.attempt) == ("SUCCEEDED", 2), job.message
    epochs = up.client.epochs(job_id).items
    assert [row.epoch for row in epochs] == list(range(EPOCHS))
    assert [row.attempt for row in epochs][:trained] == [1] * trained
    lengths = [row.local_steps for row in epochs]
    assert (lengths[0], set(lengths[trained:])) == (2, {8})
    storage = up.home / "storage" / job_id
    assert storage.is_dir()
    up.client.delete_job(job_id)
    wait_for(lambda: not storage.exists())
