"""Nodes that come and go, announced or not, and the process that knows all nodes: on clusters of
several raylets.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray

from service.runtime.ray_backend import RayBackend
from tests.conftest import Require
from tests.elastic.conftest import Life, job_spec, wait_for
from tests.elastic.faults import EVERY_STEPS, Watched, job
from tests.elastic.memory_cgroup import memory_cgroup
from tests.elastic.nodes import QUICK_DEATHS, Cluster, Node, may_mount, with_private
from workers.contract import FailureRecord, Launch, ResizeRecord

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(600)]
AFTER = 30
NODE_BYTES = 3_000_000_000
"""Memory of a node that is to run out of it."""
BIG = {"held_bytes": 1_200_000_000, "leak_bytes": 1_000_000, "min_step_s": 0.1}
"""Takes 4 MB more with each step: from 92 % of the node's memory on it has 60 steps to the kernel's
limit.
"""
ELASTIC = {"workers": {"min": 1}}
Begin = Callable[..., Watched]


@pytest.fixture
def begin(tmp_path: Path) -> Begin:
    """Starts a watched job on a cluster, whose nodes have room for one worker each; it ends with
    the cluster.
    """

    def on(cluster: Cluster, **parts: Any) -> Watched:
        folder = tmp_path / "steps"
        folder.mkdir()
        return Watched(start_life(cluster, tmp_path, job(folder, **parts)), folder)

    return on


def start_life(cluster: Cluster, folder: Path, spec: dict[str, Any]) -> Life:
    """Start a job on a cluster; it ends with the cluster."""
    checked = job_spec(spec)
    job_id = uuid.uuid4().hex
    storage = str(folder / "jobs" / job_id)
    launch = Launch(
        job_id=job_id, attempt=1, workers=checked.workers.max, storage=storage, spec=checked
    )
    life = Life(RayBackend(address=cluster.address), launch)
    life.backend.start(launch)
    return life


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


@pytest.mark.both_engines
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
def test_a_node_that_does_not_see_the_storage(
    begin: Begin, require: Require, tmp_path: Path, own: str
) -> None:
    require("unshare")
    private = tmp_path / own
    private.mkdir()
    may_mount(private) or require.missing("this user may not mount a file system")
    with cluster(nodes=1) as made:
        storage = {"storage": f"file://{tmp_path}/checkpoints"} if own == "checkpoints" else {}
        watched = begin(made, **ELASTIC, options={"pace_s": 0.15}, checkpoint=storage)
        watched.reach(AFTER)
        watched.fault()
        made.add(prefix=with_private(private))
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


def test_a_node_whose_memory_a_big_job_takes(
    begin: Begin, require: Require, tmp_path: Path
) -> None:
    # Ray's own monitor is off, so that nobody else kills.
    settings = {**QUICK_DEATHS, "RAY_memory_monitor_refresh_ms": "0"}
    big = {
        "task": {"name": "tests.elastic.leaking:Leaks", "options": BIG},
        "workers": {"min": 1, "max": 1},
        "max_failures": 0,
    }
    with memory_cgroup(NODE_BYTES) as group, cluster(nodes=0, settings=settings) as made:
        if group is None:
            require.missing("this user may not limit a process's memory")
        made.add(cpus=2, prefix=group.command_prefix())
        innocent = begin(made, workers={"min": 1, "max": 1})
        innocent.reach(AFTER)
        end = start_life(made, tmp_path, big).end()
        assert (end.status, end.reason) == ("FAILED", "TASK_RAISED")
        assert re.search(r"out of memory \(\S+ GB; its node used \S+ of 3.0\S* GB\)", end.message)
        innocent.survived("node's memory taken by another job")
        assert [failure.message for failure in innocent.life.all(FailureRecord)] == []
        assert innocent.sizes() == [1]
