"""Room on real Ray that a more important job takes, and gives back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accordion_client import Client
from tests.e2e.real_services import list_variables, serve
from tests.e2e.real_up import wait_for
from tests.elastic.nodes import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def spec(*, epochs: int, min_workers: int, priority: int) -> dict[str, Any]:
    return {
        "task": {"name": "digits-mlp", "options": {"hidden": 32, "min_step_s": 0.05}},
        "training": {"epochs": epochs},
        "workers": {"min": min_workers, "max": 2},
        "priority": priority,
    }


def wait_until(client: Client, job_id: str, status: str, workers: int) -> None:
    def holds() -> bool:
        job = client.job(job_id)
        return (job.status, job.world_size) == (status, workers)

    wait_for(holds, lambda: client.job(job_id))


def test_a_job_shrinks_then_pauses_for_others_and_gets_its_room_back(tmp_path: Path) -> None:
    with Cluster(nodes=1, cpus=2) as cluster:
        variables = list_variables(cluster, tmp_path / "storage")
        variables["ACCORDION_PREEMPT_FOR_PRIORITY"] = "true"
        with serve(tmp_path / "home", variables) as client:
            low = client.submit(spec(epochs=1000, min_workers=1, priority=10)).id
            wait_until(client, low, "RUNNING", 2)
            small = client.submit(spec(epochs=10, min_workers=1, priority=20)).id
            wait_until(client, low, "RUNNING", 1)
            wait_for(lambda: client.job(small).status == "SUCCEEDED", lambda: client.job(small))
            wait_until(client, low, "RUNNING", 2)
            large = client.submit(spec(epochs=5, min_workers=2, priority=20)).id
            wait_for(lambda: client.job(large).status == "SUCCEEDED", lambda: client.job(large))
            assert client.attempts(low).items[0].reason == "PREEMPTED"
            wait_until(client, low, "RUNNING", 2)
            assert client.job(low).attempt == 2
            epochs = [row.epoch for row in client.all_epochs(low)]
            assert epochs == list(range(len(epochs)))
            client.cancel(low)
            wait_for(lambda: client.job(low).status == "CANCELLED", lambda: client.job(low))
