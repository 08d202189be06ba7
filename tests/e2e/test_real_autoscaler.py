"""Jobs that need nodes which a cluster lacks: Ray's own autoscaler starts and ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from accordion_client import Client
from accordion_service.runtime.ray_autoscaler import RayAutoscaler
from tests.e2e.autoscaled_cluster import FakeNodeType, autoscaled_cluster
from tests.e2e.real_services import list_variables, serve
from tests.e2e.real_up import WAIT_S, wait_for
from tests.e2e.test_autoscaler_request import read_version_1, read_version_2
from tests.elastic.nodes import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
NODE_TYPES = {f"zone-{zone}": FakeNodeType(cpus=2, labels={"zone": zone}) for zone in "ab"}
LONG = 100_000
"""Epochs of a job that is cancelled: more than it trains on any machine meanwhile."""


@contextmanager
def service(folder: Path, version: Literal[1, 2]) -> Iterator[tuple[Client, Cluster]]:
    """A service on a cluster that has no node for workers yet, and whose autoscaler has reported;
    otherwise the scheduler would look again only a minute later.
    """
    with autoscaled_cluster(folder, version=version, **NODE_TYPES) as cluster:
        wait_for(lambda: has_reported(cluster.address))
        with serve(folder / "home", list_variables(cluster, folder / "storage")) as client:
            yield client, cluster


def has_reported(address: str) -> bool | None:
    autoscaler = RayAutoscaler()
    autoscaler.exchange(address, None, sender=0, always=False)
    assert autoscaler.wait(WAIT_S)
    return autoscaler.exchange(address, None, sender=0, always=False).exists


def submit(client: Client, *, epochs: int, **workers: Any) -> str:
    task = {"name": "digits-mlp", "options": {"hidden": 32, "min_step_s": 0.01}}
    spec = {"task": task, "training": {"epochs": epochs}}
    return client.submit({**spec, "workers": {"min": 1, "max": 1, "cpus": 2, **workers}}).id


def read_queue(client: Client, job_id: str) -> str:
    """What the queue says of a waiting job and the autoscaler."""
    return next((one.autoscaler for one in client.queue().items if one.id == job_id), "")


def list_zones(client: Client) -> list[str]:
    """Zones of the nodes that the autoscaler has started and not ended."""
    return [node.labels["zone"] for node in client.cluster().nodes if node.alive and node.cpus]


def wait_until(client: Client, condition: Callable[[], object]) -> None:
    wait_for(condition, lambda: (client.queue(), client.cluster(), client.jobs()))


def wait_for_status(client: Client, job_id: str, status: str) -> None:
    wait_until(client, lambda: client.job(job_id).status == status)


def test_version_1_starts_a_node_for_a_job_and_ends_it_afterwards(tmp_path: Path) -> None:
    with service(tmp_path, version=1) as (client, cluster):
        job = submit(client, epochs=5)
        wait_until(client, lambda: "were requested" in read_queue(client, job))
        wait_for_status(client, job, "SUCCEEDED")
        wait_until(client, lambda: list_zones(client) == [])
        wait_until(client, lambda: read_version_1(cluster.address) == [])


def test_version_2_starts_the_nodes_whose_labels_jobs_need_and_ends_them_afterwards(
    tmp_path: Path,
) -> None:
    with service(tmp_path, version=2) as (client, cluster):
        first = submit(client, epochs=LONG, cpus=1, node_labels={"zone": "!a"})
        wait_until(client, lambda: client.job(first).status != "QUEUED")
        wait_until(client, lambda: list_zones(client) == ["b"])
        # Beside the first job, two whole nodes would be one more than there may be.
        pair = submit(client, epochs=5, min=2, max=2, node_labels={"zone": "in(a,b)"})
        cannot = "the autoscaler cannot add nodes for "
        wait_until(client, lambda: read_queue(client, pair).startswith(cannot))
        client.cancel(first)
        wait_for_status(client, pair, "SUCCEEDED")
        large = submit(client, epochs=LONG, cpus=64)
        wait_until(client, lambda: read_queue(client, large).startswith(f"{cannot}1 worker of 64"))
        client.cancel(large)
        wait_until(client, lambda: list_zones(client) == [])
        wait_until(client, lambda: read_version_2(cluster.address) == [])
