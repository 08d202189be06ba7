"""Nodes that go, announced or not, and the process that knows all nodes, on clusters of several
raylets.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from accordion_workers.records.contract import DesiredState, FailureRecord, ResizeRecord
from tests.conftest import Require
from tests.elastic.conftest import Watch, wait_for
from tests.elastic.faults import EVERY_STEPS, Watched, job
from tests.elastic.memory_cgroup import memory_cgroup
from tests.elastic.node_jobs import connected_cluster, host_of_a_worker, start_job
from tests.elastic.nodes import QUICK_DEATHS

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]
AFTER = 30
NODE_BYTES = 3_000_000_000
"""Memory of a node that is to run out of it."""
BIG = {"held_bytes": 1_200_000_000, "leak_bytes": 1_000_000, "min_step_s": 0.1}
"""Takes 4 MB more with each step: from 92 % of the node's memory on it has 60 steps to the kernel's
limit.
"""
ELASTIC = {"workers": {"min": 1}}


def leaving(watched: Watched) -> list[str]:
    """Nodes that go, or are gone: one that was told to go does so as soon as nothing runs there."""
    return [node.id for node in watched.life.backend.nodes() if node.draining or not node.alive]


def test_a_node_killed(begin: Watch) -> None:
    with connected_cluster(nodes=2) as made:
        watched = begin(made, **ELASTIC)
        watched.reach(AFTER)
        watched.fault()
        made.kill(host_of_a_worker(made))
        watched.survived("node killed, survivors go on (min 1)")
        assert watched.sizes() == [2, 1]
        assert [failure.cause for failure in watched.life.all(FailureRecord)] == ["infrastructure"]


def test_a_node_that_is_avoided_and_then_loses_a_worker(tmp_path: Path) -> None:
    folder = tmp_path / "steps"
    folder.mkdir()
    with connected_cluster(nodes=1) as made:
        node, spec = made.add(options=["--node-name=gpu-7"]), job(folder, **ELASTIC)
        life = start_job(made, tmp_path, spec, avoid=[node.id])
        watched = Watched(life, folder)
        watched.reach(AFTER)
        assert (watched.sizes(), node.workers("ray::Worker")) == ([1], [])
        names = {one.id: one.name for one in life.backend.nodes()}
        assert names.pop(node.id) == "gpu-7"
        assert len(set(names.values())) == 1, "the machine's address"
        life.order(DesiredState(version=1, avoid=()))
        watched.wait_for_sizes(1, 2)
        [worker] = node.workers("ray::Worker")
        watched.fault()
        os.kill(worker, signal.SIGKILL)
        watched.wait_for_sizes(1, 2, 1)
        watched.survived("worker kill -9 on one of two nodes")
        assert [failure.nodes for failure in life.all(FailureRecord)] == [(node.id,)]


@pytest.mark.parametrize("way", ["drained", "terminated"])
def test_a_node_announced_to_go(begin: Watch, way: str) -> None:
    with connected_cluster(
        nodes=2, settings={"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "30"}
    ) as made:
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


def test_the_gcs_killed_and_back(begin: Watch) -> None:
    with connected_cluster(nodes=2, durable=True) as made:
        watched = begin(made)
        watched.reach(AFTER)
        watched.fault()
        start_again = made.kill_gcs()
        watched.reach(watched.step() + EVERY_STEPS)
        start_again()
        assert watched.survived("GCS kill -9 and back").rolled_back == 0
        assert watched.life.all(FailureRecord) == []


def test_a_node_cut_from_the_network_and_healed(begin: Watch, require: Require) -> None:
    require("ip")
    with connected_cluster(nodes=2, hosts=4) as made:
        watched = begin(made, **ELASTIC)
        watched.reach(AFTER)
        node = host_of_a_worker(made)
        watched.fault()
        made.cut(node)
        # on a slow machine a failure's record may come from a start that took too long.
        watched.wait_for_sizes(2, 1)
        made.heal(node)
        watched.survived("node cut from the network and healed")


def test_a_node_whose_memory_a_big_job_takes(
    begin: Watch, require: Require, tmp_path: Path
) -> None:
    # Ray's own monitor is off, so that nobody else kills.
    settings = {**QUICK_DEATHS, "RAY_memory_monitor_refresh_ms": "0"}
    big = {
        "task": {"name": "tests.elastic.leaking:Leaks", "options": BIG},
        "workers": {"min": 1, "max": 1},
        "max_failures": 0,
    }
    with memory_cgroup(NODE_BYTES) as group, connected_cluster(nodes=0, settings=settings) as made:
        if group is None:
            require.missing("this user may not limit a process's memory")
        made.add(cpus=2, prefix=group.command_prefix())
        innocent = begin(made, workers={"min": 1, "max": 1})
        innocent.reach(AFTER)
        end = start_job(made, tmp_path, big).end()
        assert (end.status, end.reason) == ("FAILED", "TASK_RAISED")
        assert re.search(r"out of memory \(\S+ GB; its node used \S+ of 3.0\S* GB\)", end.message)
        innocent.survived("node's memory taken by another job")
        assert [failure.message for failure in innocent.life.all(FailureRecord)] == []
        assert innocent.sizes() == [1]
