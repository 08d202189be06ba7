"""Nodes that join a cluster while a job trains there: useful ones, and ones that lack something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from accordion_service.runtime.ray_backend import RayBackend
from accordion_workers.records.contract import FailureRecord, ResizeRecord
from tests.conftest import Require
from tests.elastic.conftest import Watch, wait_for
from tests.elastic.faults import Watched
from tests.elastic.node_jobs import connected_cluster
from tests.elastic.nodes import Node, may_mount, with_private
from tests.elastic.watched import NO_DIGITS

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]
AFTER = 30
ELASTIC = {"workers": {"min": 1}}


def test_a_node_that_joins(begin: Watch) -> None:
    with connected_cluster(nodes=1) as made:
        watched = begin(made, **ELASTIC)
        watched.reach(AFTER)
        watched.fault()
        made.add()
        watched.wait_for_sizes(1, 2)
        assert watched.survived("node added (from ray start)").rolled_back == 0
        assert watched.sizes() == [1, 2]
        assert [resize.cause for resize in watched.life.all(ResizeRecord)] == ["joined"]


def test_only_nodes_with_the_labels_and_resources_of_the_job_are_used(begin: Watch) -> None:
    labels = {"zone": "in(b,c)", "disk": "!hdd"}
    needs = {"node_labels": labels, "resources": {"fpga": 1}, "memory": "1GB"}
    with connected_cluster(nodes=1) as made:
        watched = begin(made, workers={"min": 1, "max": 1, **needs})
        [other] = made.nodes
        options = ["--labels=zone=b", '--resources={"fpga": 1}', "--memory=3000000000"]
        fitting = made.add(options=options)
        watched.reach(AFTER)
        assert len(fitting.workers("ray::Worker")) == 1
        assert other.workers("ray::Worker") == []
        [seen] = [node for node in watched.life.backend.nodes() if node.id == fitting.id]
        assert (seen.labels["zone"], seen.custom) == ("b", {"fpga": 1.0})
        assert seen.custom_free == {"fpga": 0.0}
        assert seen.memory_bytes_free == pytest.approx(seen.memory_bytes - 1e9, abs=1e6)


def test_nodes_that_lack_the_data_or_the_storage_are_avoided(
    begin: Watch, require: Require, tmp_path: Path
) -> None:
    require("unshare")
    private = [tmp_path / "jobs", tmp_path / "checkpoints"]
    for folder in private:
        folder.mkdir()
        may_mount(folder) or require.missing("this user may not mount a file system")
    with connected_cluster(nodes=1) as made:
        storage = {"storage": f"file://{tmp_path}/checkpoints"}
        # held from early on: three nodes start meanwhile.
        watched = begin(made, **ELASTIC, options={"hold_from": AFTER + 10}, checkpoint=storage)
        watched.reach(AFTER)
        watched.fault()
        made.add(prefix=["env", f"{NO_DIGITS}=1"])
        assert "FileNotFoundError: the digits are not on this node" in wait_for_avoided(watched, 1)
        assert watched.sizes() == [1]
        assert watched.life.all(FailureRecord) == []
        for number, folder in enumerate(private, 2):
            made.add(prefix=with_private(folder))
            told = wait_for_avoided(watched, number)
            assert "does not see the storage of this job" in told
        watched.survived("nodes without data or storage added")
        assert watched.sizes()[-1] == 1


@pytest.fixture
def jobs(require: Require, tmp_path: Path) -> Path:
    """The folder of all jobs, of which nodes may have one of their own."""
    require("unshare")
    folder = tmp_path / "jobs"
    folder.mkdir()
    may_mount(folder) or require.missing("this user may not mount a file system")
    return folder


def test_a_new_job_whose_only_worker_is_placed_where_its_storage_is_missing(
    begin: Watch, jobs: Path
) -> None:
    with connected_cluster(nodes=0) as made:
        blind, good = made.add(prefix=with_private(jobs)), made.add()
        RayBackend(address=made.address).nodes()  # connects
        with occupied(good):
            watched = begin(made, workers={"min": 1, "max": 1})
            life = watched.life
            wait_for(lambda: life.look() is not None or life.all(FailureRecord), life.story)
        watched.reach(AFTER)
        assert watched.sizes() == [1]
        assert [len(node.workers("ray::Worker")) for node in (blind, good)] == [0, 1]
        [failure] = life.all(FailureRecord)
        assert (failure.cause, failure.is_storage) == ("infrastructure", True)
        assert "does not see the storage of this job" in failure.message
        assert "mount the same directory on all nodes" in failure.message


def test_a_new_job_ends_if_no_node_sees_its_storage(begin: Watch, jobs: Path) -> None:
    with connected_cluster(nodes=0) as made:
        for _ in range(2):
            made.add(prefix=with_private(jobs))
        end = begin(made, workers={"min": 1, "max": 1}).life.end()
        assert (end.status, end.reason) == ("FAILED", "START_FAILED")
        assert "could see the storage on any of 2 nodes" in end.message
        assert "mount the same directory on all nodes" in end.message


@contextmanager
def occupied(node: Node) -> Iterator[None]:
    """Hold the only CPU of a node."""
    there = NodeAffinitySchedulingStrategy(node.id, soft=False)
    holder = ray.remote(Holder).options(num_cpus=1, scheduling_strategy=there).remote()
    ray.get(holder.__ray_ready__.remote())
    yield
    ray.kill(holder)


class Holder:
    """An actor that does nothing."""


def wait_for_avoided(watched: Watched, number: int) -> str:
    """Wait until the supervisor avoids so many nodes; what it said of the last one."""

    def told() -> list[str]:
        lines = [line.text for line in watched.life.logs]
        return [text for text in lines if "no process is started there" in text]

    wait_for(lambda: watched.life.look() is not None or len(told()) >= number, watched.life.story)
    assert len(told()) == number, watched.life.story()
    return told()[-1]
