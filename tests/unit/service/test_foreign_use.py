"""Use by other programs, computed from what our own processes hold or held."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from accordion_service.domain.capacity.cluster_snapshot import read_cluster_snapshot
from accordion_service.domain.capacity.queue import PendingJob, plan_queue
from accordion_service.domain.capacity.resources import ResourceRequest, Resources
from accordion_service.runtime.protocol import Node
from accordion_service.scheduler.allocator import ClusterState
from accordion_service.scheduler.foreign_use import LAG_S, ForeignUse


def node(number: int, *, free: float | None, cpus: float = 4.0) -> Node:
    return Node(
        id=f"n{number}",
        address="",
        alive=True,
        cpus=cpus,
        gpus=0.0,
        memory_bytes=0,
        cpus_free=free,
        gpus_free=0.0,
    )


def worker(cpus: float, at: str = "") -> Resources:
    return Resources(cpus=cpus, gpus=0.0, node=at)


def test_used_capacity_without_a_process_of_ours_is_foreign() -> None:
    use = ForeignUse()
    use.record_survey([node(0, free=1.0), node(1, free=4.0)], [worker(1, "n0")], 0.0)
    assert use.estimate([worker(1, "n0")]) == [worker(2, "n0")]


def test_processes_without_a_known_node_explain_use_anywhere() -> None:
    use = ForeignUse()
    held = [worker(2), worker(2)]
    use.record_survey([node(0, free=2.0), node(1, free=1.0)], held, 0.0)
    assert sum(size.cpus for size in use.estimate(held)) == 1.0


def test_use_of_a_process_that_ended_counts_as_foreign_only_after_the_lag() -> None:
    use = ForeignUse()
    use.record_survey([node(0, free=0.0)], [worker(4, "n0")], 0.0)
    use.record_survey([node(0, free=0.0)], [], LAG_S)
    assert use.estimate([]) == []
    use.record_survey([node(0, free=0.0)], [], LAG_S + 1)
    assert use.estimate([]) == [worker(4, "n0")]


def test_cluster_that_does_not_tell_its_free_capacity_has_no_foreign_use() -> None:
    use = ForeignUse()
    use.record_survey([node(0, free=None)], [], 0.0)
    assert use.estimate([]) == []


def shared(*, memory_free: float, fpgas_free: float) -> Node:
    return replace(
        node(0, free=4.0),
        memory_bytes=16_000_000_000,
        memory_bytes_free=memory_free,
        custom={"fpga": 2.0},
        custom_free={"fpga": fpgas_free},
    )


def test_memory_and_custom_resources_of_other_programs_are_foreign() -> None:
    use, ours = ForeignUse(), replace(worker(0, "n0"), memory=4e9, custom=(("fpga", 1.0),))
    use.record_survey([shared(memory_free=10e9, fpgas_free=0.0)], [ours], 0.0)
    assert use.estimate([ours]) == [replace(worker(0, "n0"), memory=2e9, custom=(("fpga", 1.0),))]


def test_memory_and_custom_resources_of_our_processes_are_not_foreign() -> None:
    use = ForeignUse()
    ours = replace(worker(0), memory=6e9, custom=(("fpga", 2.0),))
    use.record_survey([shared(memory_free=10e9 - 1000, fpgas_free=0.0)], [ours], 0.0)
    assert use.estimate([ours]) == []


def test_a_job_waits_for_custom_resources_and_memory_that_other_programs_use() -> None:
    cluster = ClusterState(nodes=[shared(memory_free=10e9, fpgas_free=1.0)])
    cluster.update_foreign_use([], 0.0)
    asked = ResourceRequest(min=1, max=1, cpus=1, gpus=0, memory=11e9, custom=(("fpga", 2.0),))
    nodes, foreign = cluster.usable_nodes(), cluster.foreign_use.estimate([])
    message = plan_queue([PendingJob(id="a", request=asked)], nodes, [], foreign=foreign)[
        "a"
    ].message
    assert "other programs use 6 of the cluster's 16 GB and 1 of the cluster's 2 fpga" in message
    documents = json.loads(json.dumps([asdict(node) for node in cluster.nodes]))
    assert read_cluster_snapshot(documents) == (nodes, foreign)
    fits = replace(asked, memory=10e9, custom=(("fpga", 1.0),))
    assert plan_queue([PendingJob(id="a", request=fits)], nodes, [], foreign=foreign)["a"].workers
