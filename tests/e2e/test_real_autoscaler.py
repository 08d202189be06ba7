"""Jobs that need a node which the cluster does not have: Ray's own autoscaler starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray.autoscaler.v2.sdk import get_cluster_status

from service.api.cluster_schemas import NodeView, QueueEntry
from service.client import Client
from tests.e2e.autoscaled_cluster import FakeNodeType, autoscaled_cluster
from tests.e2e.real_services import list_variables, serve
from tests.e2e.real_up import wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
LARGE = FakeNodeType(cpus=2, labels={"zone": "a"})
OTHER = FakeNodeType(cpus=2, labels={"zone": "b"})


def submit(client: Client, *, epochs: int = 5, **workers: Any) -> str:
    task = {"name": "digits-mlp", "options": {"hidden": 32, "min_step_s": 0.02}}
    spec = {"task": task, "training": {"epochs": epochs}}
    return client.submit({**spec, "workers": {"min": 1, "max": 1, "cpus": 2, **workers}}).id


def entry(client: Client, job_id: str) -> QueueEntry | None:
    return next((one for one in client.queue().items if one.id == job_id), None)


def said(client: Client, job_id: str) -> str:
    """What the queue says of the autoscaler."""
    found = entry(client, job_id)
    return found.autoscaler if found is not None else ""


def added_nodes(client: Client) -> list[NodeView]:
    return [node for node in client.cluster().nodes if node.alive and node.cpus]


def story(client: Client) -> object:
    return client.queue(), client.cluster(), client.jobs()


def wait_for_status(client: Client, job_id: str, status: str) -> None:
    wait_for(lambda: client.job(job_id).status == status, lambda: story(client))


def test_version_2_adds_a_node_with_the_labels_of_a_job_and_ends_it_afterwards(
    tmp_path: Path,
) -> None:
    with autoscaled_cluster(tmp_path, version=2, large=LARGE, other=OTHER) as cluster:
        variables = list_variables(cluster, tmp_path / "storage")
        with serve(tmp_path / "home", variables) as client:
            job = submit(client, node_labels={"zone": "!a"}, epochs=1000)
            wait_for(lambda: "were requested" in said(client, job), lambda: story(client))
            wait_for_status(client, job, "RUNNING")
            [node] = added_nodes(client)
            assert (node.labels["ray.io/node-group"], node.labels["zone"]) == ("other", "b")
