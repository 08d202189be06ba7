"""What other programs use on a node that takes no workers is not subtracted from the others."""

from __future__ import annotations

from accordion_service.domain.capacity.allocation import plan_allocations
from accordion_service.domain.capacity.cluster_snapshot import read_cluster_snapshot
from accordion_service.domain.capacity.queue import AllocatedJob, PendingJob, plan_queue
from accordion_service.domain.capacity.resources import ResourceRequest
from accordion_service.domain.jobs.statuses import Reason
from accordion_service.runtime.protocol import Node
from accordion_service.scheduler.allocator import ClusterState

ASKED = ResourceRequest(min=2, max=2, cpus=2, gpus=0)


def _cluster() -> ClusterState:
    """A free node, and a draining one that another program uses."""
    cluster = ClusterState(nodes=[_node("a", free=4.0), _node("b", free=2.0, draining=True)])
    cluster.update_foreign_use([], 0.0)
    return cluster


def _node(name: str, *, free: float, draining: bool = False) -> Node:
    return Node(
        id=name,
        address="",
        alive=True,
        cpus=4.0,
        gpus=0.0,
        memory_bytes=0,
        cpus_free=free,
        gpus_free=0.0,
        draining=draining,
    )


def test_a_job_starts_beside_a_draining_node_that_others_use() -> None:
    cluster = _cluster()
    foreign = cluster.foreign_use.estimate([])
    waiting = [PendingJob(id="new", request=ASKED)]
    admission = plan_queue(waiting, cluster.usable_nodes(), [], foreign=foreign)["new"]
    assert (admission.reason, admission.workers) == (Reason.ADMITTED, 2)


def test_a_job_grows_beside_a_draining_node_that_others_use() -> None:
    cluster = _cluster()
    job = AllocatedJob(
        id="old",
        request=ResourceRequest(min=1, max=2, cpus=2, gpus=0),
        allocated_workers=1,
        placed=("a",),
    )
    grants = plan_allocations(
        [job], [], cluster.usable_nodes(), foreign=cluster.foreign_use.estimate([])
    )
    assert grants["old"].workers == 2


def test_a_dry_run_ignores_what_others_use_of_a_draining_node() -> None:
    rows = [
        {
            "id": node.id,
            "alive": True,
            "draining": node.draining,
            "cpus": node.cpus,
            "gpus": 0.0,
            "memory_bytes": 0,
        }
        | {"cpus_foreign": node.cpus_foreign, "gpus_foreign": 0.0}
        for node in _cluster().nodes
    ]
    nodes, foreign = read_cluster_snapshot(rows)
    admission = plan_queue([PendingJob(id="new", request=ASKED)], nodes, [], foreign=foreign)["new"]
    assert admission.reason is Reason.ADMITTED
