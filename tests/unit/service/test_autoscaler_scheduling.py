"""What version 2 of Ray's autoscaler launches for our requests: its scheduler, without a cloud."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from ray.autoscaler.v2.instance_manager.common import InstanceUtil
from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import (
    ResourceDemandScheduler,
    SchedulingReply,
    SchedulingRequest,
)
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.core.generated.autoscaler_pb2 import NodeState, NodeStatus
from ray.core.generated.instance_manager_pb2 import Instance, NodeKind

from accordion_service.domain.capacity.queue import PendingJob
from accordion_service.domain.capacity.resources import ResourceRequest, Resources
from accordion_service.domain.capacity.trials import NO_TRIALS
from accordion_service.runtime.ray_autoscaler import RayAutoscaler
from accordion_workers.common.node_selectors import read_selector
from tests.unit.service.fake_gcs import FakeGcs, build_constraint
from tests.unit.service.test_backfill import running_job
from tests.unit.service.test_capacity_request import judge, plan, started_node, waiting
from tests.unit.service.test_queue import asked

LONG_IDLE_MS = 3_600_000
GPU_NODE, CPU_NODE = {"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0}
TYPES = {
    name: NodeTypeConfig(
        name=name, min_worker_nodes=0, max_worker_nodes=4, resources=resources, labels=labels
    )
    for name, resources, labels in [
        ("gpu", GPU_NODE, {}),
        ("cpu-a", CPU_NODE, {"zone": "a"}),
        ("cpu-b", CPU_NODE, {"zone": "b"}),
    ]
}


def instance_of(node: Resources, *, idle: bool) -> AutoscalerInstance:
    """A running node as the autoscaler knows it."""
    kind, resources = ("gpu", GPU_NODE) if node.gpus else ("cpu-a", CPU_NODE)
    state = NodeState(
        node_id=node.node.encode(),
        instance_id=node.node,
        ray_node_type_name=kind,
        total_resources=resources,
        available_resources=resources if idle else {},
        labels=dict(node.labels),
        status=NodeStatus.IDLE if idle else NodeStatus.RUNNING,
        idle_duration_ms=LONG_IDLE_MS if idle else 0,
    )
    instance = InstanceUtil.new_instance(
        instance_id=node.node, instance_type=kind, status=Instance.RAY_RUNNING
    )
    instance.node_id, instance.node_kind = node.node, NodeKind.WORKER
    return AutoscalerInstance(cloud_instance_id=node.node, ray_node=state, im_instance=instance)


def schedule(
    bundles: Sequence[Resources], nodes: Sequence[Resources] = (), *, idle: bool = False
) -> SchedulingReply:
    """Let Ray schedule the request that our client sends for these bundles."""
    gcs = FakeGcs()
    gcs.start_version_2("head")
    autoscaler = RayAutoscaler(connect=gcs.connect)
    autoscaler.exchange("gcs:6379", bundles, sender=1, always=True)
    assert autoscaler.wait(timeout_s=60.0)
    [(parts, selectors)] = gcs.requests or [([], [])]
    return ResourceDemandScheduler().schedule(
        SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=TYPES,
            max_num_nodes=100,
            idle_timeout_s=60.0,
            cluster_resource_constraints=[build_constraint(parts, selectors)],
            current_instances=[instance_of(node, idle=idle) for node in nodes],
        )
    )


def needs(request: ResourceRequest, **labels: str) -> PendingJob:
    """A job that waits for nodes with these labels."""
    return PendingJob(id="w", request=replace(request, selector=read_selector(labels)))


def launched(reply: SchedulingReply) -> dict[str, int]:
    return {launch.instance_type: launch.count for launch in reply.to_launch}


def test_the_nodes_of_a_group_are_launched_together() -> None:
    reply = schedule(plan([waiting("w", 3, cpus=2, gpus=4)]).bundles)
    assert launched(reply) == {"gpu": 3}
    assert list(reply.infeasible_cluster_resource_constraints) == []


@pytest.mark.parametrize(
    ("zone", "node_type"),
    [
        ("a", "cpu-a"),
        ("b", "cpu-b"),
        ("in(b,c)", "cpu-b"),
        ("!a", "cpu-b"),
        ("!in(b,c)", "cpu-a"),
    ],
)
def test_a_group_with_labels_gets_nodes_that_have_them(zone: str, node_type: str) -> None:
    job = needs(asked(2, 2, cpus=8.0), zone=zone)
    assert launched(schedule(plan([job]).bundles)) == {node_type: 2}


def test_a_group_whose_labels_no_node_type_has_is_infeasible() -> None:
    reply = schedule(plan([needs(asked(1, 1), zone="!in(a,b)", disk="ssd")]).bundles)
    assert len(reply.infeasible_cluster_resource_constraints) == 1


def test_a_worker_that_fits_only_an_empty_node_gets_one_beside_half_used_ones() -> None:
    nodes = [started_node(name, cpus=8.0, gpus=4.0) for name in "ab"]
    jobs = [running_job(node.node, node.node, cpus=2, gpus=2) for node in nodes]
    bundles = plan([waiting("w", 1, cpus=2, gpus=4)], jobs, nodes).bundles
    assert launched(schedule(bundles, nodes)) == {"gpu": 1}
    untied = [Resources(cpus=part.cpus, gpus=part.gpus) for part in bundles]
    assert launched(schedule(untied, nodes)) == {}


def test_no_node_is_launched_for_a_worker_that_fits_beside_what_is_in_use() -> None:
    nodes = [started_node("a", cpus=8.0, gpus=4.0)]
    job = running_job("r", "a", cpus=2, gpus=2)
    bundles = plan([waiting("w", 1, cpus=2, gpus=2)], [job], nodes).bundles
    assert launched(schedule(bundles, nodes)) == {}


def test_capacity_of_other_programs_makes_no_room_for_a_waiting_worker() -> None:
    nodes = [started_node("a", cpus=8.0, gpus=4.0)]
    other = Resources(cpus=8.0, gpus=4.0, node="a")
    bundles = plan([waiting("w", 1, cpus=2, gpus=2)], (), nodes, foreign=[other]).bundles
    assert launched(schedule(bundles, nodes)) == {"gpu": 1}


@pytest.mark.parametrize("labels", [{"zone": "a"}, {"zone": "!b"}, {"zone": "a", "disk": "!hdd"}])
def test_a_waiting_worker_with_labels_takes_no_room_from_what_is_in_use(
    labels: dict[str, str],
) -> None:
    nodes = [started_node("a", cpus=8.0, zone="a")]
    job = needs(asked(1, 1, cpus=8.0), **labels)
    reply = schedule(plan([job], [running_job("r", "a", cpus=2)], nodes).bundles, nodes)
    assert list(reply.infeasible_cluster_resource_constraints) == []
    assert launched(reply) == {"cpu-a": 1}


def test_idle_nodes_that_a_waiting_job_needs_are_kept_and_others_are_let_go() -> None:
    nodes = [started_node(name, cpus=8.0) for name in "ab"]
    kept = schedule(plan([waiting("w", 2, cpus=8)], (), nodes).bundles, nodes, idle=True)
    assert [one.instance_id for one in kept.to_terminate] == []
    let_go = schedule(plan([], (), nodes).bundles, nodes, idle=True)
    assert sorted(one.instance_id for one in let_go.to_terminate) == ["a", "b"]


def test_one_infeasible_job_makes_the_request_infeasible_until_the_trials_find_it() -> None:
    pending = [waiting("huge", 1, gpus=16), waiting("a", 2, gpus=4), waiting("b", 1, gpus=4)]
    trials, replies = NO_TRIALS, []
    for _ in range(8):
        request = plan(pending, trials=trials)
        replies.append(schedule(request.bundles))
        is_feasible = not replies[-1].infeasible_cluster_resource_constraints
        trials = judge(trials, request, is_feasible=is_feasible)
    assert launched(replies[0]) == {}
    assert launched(replies[-1]) == {"gpu": 3}
    assert plan(pending, trials=trials).obstacles.keys() == {"huge"}


def test_the_trials_stop_at_the_largest_number_of_nodes_that_the_autoscaler_may_add() -> None:
    pending = [waiting(str(number), 1, gpus=4) for number in range(6)]
    trials = NO_TRIALS
    for _ in range(16):
        request = plan(pending, trials=trials)
        reply = schedule(request.bundles)
        is_feasible = not reply.infeasible_cluster_resource_constraints
        trials = judge(trials, request, is_feasible=is_feasible)
    assert launched(reply) == {"gpu": TYPES["gpu"].max_worker_nodes}
    assert list(plan(pending, trials=trials).groups) == ["0", "1", "2", "3"]
