"""A cluster without nodes, which Ray's own autoscaler starts where a job asks for them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray

from service.domain.access import FULL_ACCESS
from service.runtime.ray_backend import RayBackend
from service.scheduler import run_scheduler
from service.settings import Settings, load_settings
from service.store.database import Database
from service.store.job_submission import JobSubmission
from service.store.migrations import upgrade
from service.store.models import JobRow
from service.store.repository import Repository
from tests.elastic.conftest import wait_for
from tests.elastic.nodes import QUICK_DEATHS, Cluster
from workers.contract import JobSpec

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(600)]
HEAD_ID = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"
"""Id by which Ray's provider of local nodes knows the head."""
LOCAL_NODES = {
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
    "RAY_FAKE_CLUSTER": "1",
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    "RAY_enable_autoscaler_v2": "1",
}
SPEC = {
    "task": {"name": "digits-mlp"},
    "training": {"epochs": 2},
    "workers": {"min": 2, "max": 2, "node_labels": {"zone": "b"}},
}


class AutoscaledCluster(Cluster):
    """A head whose autoscaler starts nodes of two zones on this machine."""

    def __init__(self, folder: Path) -> None:
        super().__init__(settings={**QUICK_DEATHS, **LOCAL_NODES})
        self._config = folder / "autoscaler.json"

    def _head_arguments(self) -> list[str]:
        self._config.write_text(json.dumps(_config_of(self.address)))
        return [f"--autoscaling-config={self._config}"]


def _config_of(address: str) -> dict[str, Any]:
    nodes = {"node_config": {}, "min_workers": 0, "max_workers": 1}
    return {
        "cluster_name": "local",
        "max_workers": 2,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 1.0,
        "provider": {
            "type": "fake_multinode",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": HEAD_ID,
            "gcs_address": address,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
            "in-zone-a": {"resources": {"CPU": 2}, "labels": {"zone": "a"}, **nodes},
            "in-zone-b": {"resources": {"CPU": 2}, "labels": {"zone": "b"}, **nodes},
        },
        "head_node_type": "ray.head.default",
    }


@contextmanager
def running_scheduler(settings: Settings, runtime: RayBackend) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=run_scheduler, args=(settings, runtime), kwargs={"stop": stop})
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_queued_job_gets_nodes_with_its_labels_and_trains_there(tmp_path: Path) -> None:
    if ray.is_initialized():
        ray.shutdown()
    settings = load_settings(home=tmp_path)
    upgrade(settings.database)
    database = Database(settings.database)
    with AutoscaledCluster(tmp_path) as cluster, cluster.driver():
        backend = RayBackend(address=cluster.address)
        spec = JobSpec.model_validate(SPEC)
        job_id = JobSubmission(database, time.time, FULL_ACCESS).submit(spec, None)[0].id

        def job() -> JobRow:
            row = Repository(database).job(job_id)
            assert row is not None
            return row

        with running_scheduler(settings, backend):
            wait_for(lambda: job().ended_at is not None, lambda: f"{job().reason} {job().message}")
            zones = [node.labels.get("zone") for node in backend.nodes() if node.alive]
        ray.shutdown()
    assert job().status == "SUCCEEDED", job().message
    assert (zones.count("b"), zones.count("a")) == (1, 0)
    database.close()
