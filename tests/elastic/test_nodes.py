"""Nodes that come and go, announced or not, and the process that knows all nodes: on clusters of several raylets."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray

from service.runtime.ray_backend import RayBackend
from tests.conftest import Require
from tests.elastic.conftest import Life, wait_for
from tests.elastic.faults import EVERY_STEPS, Watched, job
from tests.elastic.nodes import Cluster, Node, may_mount
from workers.contract import FailureRecord, JobSpec, Launch, ResizeRecord

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(600)]
AFTER = 30
ELASTIC = {"workers": {"min": 1}}
Begin = Callable[..., Watched]


@pytest.fixture
def begin(tmp_path: Path) -> Begin:
    """Starts a watched job on a cluster, whose nodes have room for one worker each; it ends with the cluster."""

    def on(cluster: Cluster, **parts: Any) -> Watched:
        folder = tmp_path / "steps"
        folder.mkdir()
        spec = JobSpec.model_validate(job(folder, **parts))
        job_id = uuid.uuid4().hex
        storage = str(tmp_path / "jobs" / job_id)
        launch = Launch(job_id=job_id, attempt=1, workers=spec.workers.max, storage=storage, spec=spec)
        life = Life(RayBackend(address=cluster.address), launch)
        life.backend.start(launch)
        return Watched(life, folder)

    return on


@contextmanager
def cluster(**options: Any) -> Iterator[Cluster]:
    """A cluster, with this process connected to it."""
    if ray.is_initialized():
        ray.shutdown()
    with Cluster(cpus=1, **options) as made, made.driver():
        try:
            yield made
        finally:
            ray.shutdown()


def host_of_a_worker(made: Cluster) -> Node:
    """The last node that has one."""
    wait_for(lambda: any(node.workers("ray::Worker") for node in made.nodes))
    return [node for node in made.nodes if node.workers("ray::Worker")][-1]


def leaving(watched: Watched) -> list[str]:
    """Nodes that go, or are gone: one that was told to go does so as soon as nothing runs there."""
    return [node.id for node in watched.life.backend.nodes() if node.draining or not node.alive]


def test_a_node_killed(begin: Begin) -> None:
    with cluster(nodes=2) as made:
        watched = begin(made, **ELASTIC)
        watched.reach(AFTER)
        watched.fault()
        made.kill(host_of_a_worker(made))
        watched.survived("node killed, survivors go on (min 1)")
        assert watched.sizes() == [2, 1]
        assert [failure.cause for failure in watched.life.all(FailureRecord)] == ["infrastructure"]


@pytest.mark.parametrize("way", ["drained", "terminated"])
def test_a_node_announced_to_go(begin: Begin, way: str) -> None:
    with cluster(nodes=2, settings={"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "30"}) as made:
        watched = begin(made, **ELASTIC)
        watched.reach(AFTER)
        node = host_of_a_worker(made)
        watched.fault()
        if way == "drained":
            made.drain(node, deadline_s=30)
        else:
            made.terminate(node)
        wait_for(lambda: leaving(watched) == [node.id])
        assert watched.survived(f"node {way}").rolled_back == 0
        assert watched.sizes() == [2, 1]
        assert [resize.cause for resize in watched.life.all(ResizeRecord)] == ["leaving"]
        assert watched.life.all(FailureRecord) == []


def test_a_node_that_joins(begin: Begin) -> None:
    with cluster(nodes=1) as made:
        watched = begin(made, **ELASTIC, options={"pace_s": 0.15})
        watched.reach(AFTER)
        watched.fault()
        made.add()
        watched.wait_for_sizes(1, 2)
        assert watched.survived("node added (from ray start)").rolled_back == 0
        assert watched.sizes() == [1, 2]
        assert [resize.cause for resize in watched.life.all(ResizeRecord)] == ["joined"]


def test_a_node_that_lacks_the_data(begin: Begin) -> None:
    with cluster(nodes=1) as made:
        options = {"pace_s": 0.15, "nodes_with_data": made.nodes[0].id}
        watched = begin(made, **ELASTIC, options=options)
        watched.reach(AFTER)
        made.add()
        wait_for(lambda: watched.life.look() is not None or avoided(watched), watched.life.story)
        assert watched.survived("node without the data added").rolled_back == 0
        assert watched.sizes() == [1]
        assert watched.life.all(FailureRecord) == []
        assert "FileNotFoundError: the digits are not on this node" in avoided(watched)[0]


@pytest.mark.parametrize("own", ["jobs", "checkpoints"])
def test_a_node_that_does_not_see_the_storage(begin: Begin, require: Require, tmp_path: Path, own: str) -> None:
    require("unshare")
    private = tmp_path / own
    private.mkdir()
    may_mount(private) or require.missing("this user may not mount a file system")
    with cluster(nodes=1) as made:
        storage = {"storage": f"file://{tmp_path}/checkpoints"} if own == "checkpoints" else {}
        watched = begin(made, **ELASTIC, options={"pace_s": 0.15}, checkpoint=storage)
        watched.reach(AFTER)
        watched.fault()
        made.add(private=private)
        wait_for(lambda: watched.life.look() is not None or avoided(watched), watched.life.story)
        watched.survived(f"node with {own} of its own added")
        assert watched.sizes()[-1] == 1
        assert "does not see the storage of this job" in avoided(watched)[0]


def avoided(watched: Watched) -> list[str]:
    """What the supervisor said of nodes where the task cannot be built."""
    return [line.text for line in watched.life.logs if "no process is started there" in line.text]


def test_the_gcs_killed_and_back(begin: Begin) -> None:
    with cluster(nodes=2, durable=True) as made:
        watched = begin(made)
        watched.reach(AFTER)
        watched.fault()
        start_again = made.kill_gcs()
        watched.reach(watched.step() + EVERY_STEPS)
        start_again()
        assert watched.survived("GCS kill -9 and back").rolled_back == 0
        assert watched.life.all(FailureRecord) == []


def test_a_node_cut_from_the_network_and_healed(begin: Begin, require: Require) -> None:
    require("ip")
    with cluster(nodes=2, hosts=4) as made:
        watched = begin(made, **ELASTIC, options={"pace_s": 0.15})
        watched.reach(AFTER)
        node = host_of_a_worker(made)
        watched.fault()
        made.cut(node)
        # on a slow machine a failure's record may come from a start that took too long.
        watched.wait_for_sizes(2, 1)
        made.heal(node)
        watched.survived("node cut from the network and healed")
