"""Jobs on clusters of several nodes; each ends with its cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from accordion_service.runtime.ray_backend import RayBackend
from accordion_workers.records.contract import Launch
from tests.elastic.conftest import Life, job_spec, wait_for
from tests.elastic.nodes import Cluster, Node


def start_job(
    cluster: Cluster, folder: Path, spec: dict[str, Any], *, avoid: Sequence[str] = ()
) -> Life:
    """Start a job on a cluster; `avoid` are the nodes on which it may start no process."""
    checked = job_spec(spec)
    job_id = uuid.uuid4().hex
    storage = str(folder / "jobs" / job_id)
    launch = Launch(
        job_id=job_id,
        attempt=1,
        workers=checked.workers.max,
        storage=storage,
        spec=checked,
        avoid=tuple(avoid),
    )
    life = Life(RayBackend(address=cluster.address), launch)
    life.backend.start(launch)
    return life


@contextmanager
def connected_cluster(**options: Any) -> Iterator[Cluster]:
    """A cluster whose nodes have one CPU each, with this process connected to it."""
    if ray.is_initialized():
        ray.shutdown()
    with Cluster(cpus=1, **options) as made, made.driver():
        try:
            yield made
        finally:
            ray.shutdown()


def host_of_a_worker(made: Cluster, title: str = "ray::Worker") -> Node:
    """The last node with an actor of this title, which is by default a worker of a job."""
    wait_for(lambda: any(node.workers(title) for node in made.nodes))
    return [node for node in made.nodes if node.workers(title)][-1]
