"""Nodes that are avoided or cordoned: routes, roles, and what the scheduler does."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.access import Role
from accordion_service.domain.capacity.nodes import NodeState
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.store.tables.models import ClusterRow, NodeFailureRow
from accordion_workers.records.contract import FailureRecord
from tests.api.team import ADMIN, Team, api_routes
from tests.api.world import DIGITS, World

NODES = "/api/v1/nodes"
LONG = {"training": {"epochs": 2000, "micro_batch": 8}}
ONE = {"workers": {"min": 1, "max": 1}, **LONG}
BAD = "10.0.0.2"
"""Name of the second node of the scripted cluster, whose ID is `node-1`."""
EVERYBODY = frozenset(Role)
OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})
MAY_USE = {
    ("GET", NODES): EVERYBODY,
    ("POST", f"{NODES}/{{node}}/cordon"): OPERATORS,
    ("POST", f"{NODES}/{{node}}/restore"): OPERATORS,
}
"""Roles that may use each route of nodes."""


@pytest.fixture
def three(world: World) -> World:
    """Three nodes, so that one of them may be avoided."""
    world.runtime.cpus = [2.0, 2.0, 2.0]
    return world


def fail_on_node(world: World, job_id: str, node: str = "node-1") -> None:
    """A worker of the job is lost by the fault of a node; the job trains on."""
    message = "the process of rank 0 is gone: it was killed"
    failure = FailureRecord(cause="infrastructure", rank=0, message=message, nodes=(node,))
    world.runtime.report(job_id, failure)
    job = world.runtime.jobs[job_id]
    job.phase, job.starts_in, job.cause = "starting", 1, "recovery"
    world.turn(2)
    world.train(job_id)


def have_node_avoided(world: World, node: str = "node-1") -> None:
    """Two jobs fail on a node, three times in all."""
    first, second = world.submit(**ONE), world.submit(**ONE)
    for job_id in (first, second):
        world.train(job_id)
    for job_id in (first, first, second):
        fail_on_node(world, job_id, node)
    for job_id in (first, second):
        world.cancel(job_id)
        world.finish(job_id)
    world.turn(2)


def nodes_of(client: TestClient) -> dict[str, Any]:
    return {node["name"]: node for node in client.get(NODES).json()["items"]}


def test_a_node_on_which_two_jobs_fail_is_avoided_and_comes_back(
    client: TestClient, three: World
) -> None:
    have_node_avoided(three)
    found = nodes_of(client)
    assert [found[f"10.0.0.{n}"]["state"] for n in (1, 2, 3)] == [
        "AVAILABLE",
        "AVOIDED",
        "AVAILABLE",
    ]
    assert found[BAD]["reason"] == "3 failures of workers of 2 jobs"
    assert found[BAD]["by"] is None
    assert [one["owner"] for one in found[BAD]["failures"]] == ["admin"] * 3
    assert {one["reason"] for one in found[BAD]["failures"]} == {
        "the process of rank 0 is gone: it was killed"
    }
    shown = client.get("/api/v1/cluster").json()["nodes"]
    assert [bool(node["unschedulable"]) for node in shown] == [False, True, False]
    three.clock.now += three.settings.node_avoid_s
    three.turn(2)
    assert nodes_of(client)[BAD]["state"] == "AVAILABLE"


def test_a_single_job_has_no_node_avoided_however_often_it_fails(
    client: TestClient, three: World
) -> None:
    job_id = three.submit(**ONE)
    three.train(job_id)
    for _ in range(6):
        fail_on_node(three, job_id)
    found = nodes_of(client)[BAD]
    assert (found["state"], len(found["failures"])) == ("AVAILABLE", 6)


def test_no_worker_is_placed_on_an_avoided_node(three: World) -> None:
    have_node_avoided(three)
    job_id = three.submit(workers={"min": 1, "max": 6}, **LONG)
    three.train(job_id)
    three.turn(10)
    assert three.job(job_id).workers == 4
    assert three.runtime.jobs[job_id].launch.avoid == ("node-1",)
    three.clock.now += three.settings.node_avoid_s
    three.train(job_id, workers=6)
    assert three.runtime.jobs[job_id].orders.avoid == ()


def test_a_job_that_fits_nowhere_else_names_the_node_and_blocks_nobody(
    client: TestClient, three: World
) -> None:
    have_node_avoided(three)
    large = three.submit(workers={"min": 5, "max": 6}, **LONG)
    small = three.submit(**ONE)
    three.train(small)
    job = three.job(large)
    assert (job.status, job.reason) == (Status.QUEUED, Reason.WAITING_FOR_NODE)
    [entry] = client.get("/api/v1/queue").json()["items"]
    assert f"node {BAD} is avoided until " in entry["message"]
    assert f"an operator can restore it with 'accordion node restore {BAD}'" in entry["message"]
    three.cancel(small)
    assert client.post(f"{NODES}/{BAD}/restore").json()["state"] == "AVAILABLE"
    three.train(large)


def test_workers_on_a_cordoned_node_stay_and_learn_that_no_more_come(
    client: TestClient, three: World
) -> None:
    job_id = three.submit(workers={"min": 2, "max": 2}, **LONG)
    three.runtime.placed[job_id] = ("node-0", "node-1")
    three.train(job_id)
    done = client.post(f"{NODES}/{BAD}/cordon", json={"reason": "new GPUs"})
    assert (done.status_code, done.json()["state"], done.json()["by"]) == (200, "CORDONED", "admin")
    three.turn(8)
    job = three.job(job_id)
    assert (job.status, job.workers, job.world_size) == (Status.RUNNING, 2, 2)
    avoid = three.runtime.jobs[job_id].orders.avoid
    assert avoid == ("node-1",)
    assert job.orders_confirmed == job.orders_version


def test_a_job_that_loses_its_workers_on_a_cordoned_node_waits_in_the_queue(
    client: TestClient, three: World
) -> None:
    job_id = three.submit(workers={"min": 6, "max": 6}, **LONG)
    three.runtime.placed[job_id] = ("node-0", "node-0", "node-1", "node-1", "node-2", "node-2")
    three.train(job_id)
    client.post(f"{NODES}/{BAD}/cordon", json={})
    three.runtime.placed[job_id] = ("node-0", "node-0", "node-2", "node-2")
    three.runtime.break_group(job_id)
    three.runtime.stuck = {job_id}
    three.turn_until(lambda: three.job(job_id).reason == Reason.WAITING_FOR_NODE)
    job = three.job(job_id)
    assert (job.status, job.lost_attempts) == (Status.QUEUED, 0)
    three.runtime.stuck = set()
    del three.runtime.placed[job_id]
    client.post(f"{NODES}/{BAD}/restore")
    three.train(job_id)


def test_a_dry_run_leaves_running_workers_on_a_cordoned_node(
    client: TestClient, three: World
) -> None:
    job_id = three.submit(workers={"min": 4, "max": 4}, **LONG)
    three.runtime.placed[job_id] = ("node-0", "node-0", "node-1", "node-1")
    three.train(job_id)
    client.post(f"{NODES}/{BAD}/cordon", json={})
    three.turn(8)
    body = {**DIGITS, "workers": {"min": 2, "max": 2}}
    found = client.post("/api/v1/jobs", json=body, params={"dry_run": True}).json()
    assert found["would_wait"] is False
    assert client.get("/api/v1/queue").json()["items"] == []


def test_never_more_than_half_of_the_nodes_are_avoided(client: TestClient, three: World) -> None:
    have_node_avoided(three, "node-1")
    have_node_avoided(three, "node-2")
    found = nodes_of(client)
    assert (found[BAD]["state"], found["10.0.0.3"]["state"]) == ("AVOIDED", "FAILING")
    assert "at most half of the nodes" in found["10.0.0.3"]["message"]
    job_id = three.submit(workers={"min": 1, "max": 6}, **LONG)
    three.train(job_id)
    three.turn(10)
    assert three.job(job_id).workers == 4


def test_an_avoided_node_outlives_the_scheduler(client: TestClient, three: World) -> None:
    have_node_avoided(three)
    three.kill_scheduler()
    three.turn(2)
    assert nodes_of(client)[BAD]["state"] == "AVOIDED"
    assert client.get("/api/v1/cluster").json()["nodes"][1]["unschedulable"]


def test_a_failure_on_an_unknown_node_counts_against_no_node(
    client: TestClient, three: World
) -> None:
    job_id = three.submit(**ONE)
    three.train(job_id)
    fail_on_node(three, job_id, "never-seen")
    assert all(node["failures"] == [] for node in nodes_of(client).values())


def test_a_node_lists_its_newest_failures_and_counts_all(client: TestClient, three: World) -> None:
    with three.database.write() as session:
        session.add_all(
            NodeFailureRow(
                node=BAD, time=three.clock.now - age, job_id=str(age), attempt=1, reason="why"
            )
            for age in range(25)
        )
    three.turn(2)
    found = nodes_of(client)[BAD]
    assert found["num_failures"] == 25
    assert [one["job_id"] for one in found["failures"]] == [str(age) for age in range(20)]


def test_a_failure_outlives_its_job_without_its_owner(client: TestClient, three: World) -> None:
    job_id = three.submit(**ONE)
    three.train(job_id)
    fail_on_node(three, job_id)
    three.cancel(job_id)
    three.finish(job_id)
    client.delete(f"/api/v1/jobs/{job_id}").raise_for_status()
    [failure] = nodes_of(client)[BAD]["failures"]
    assert (failure["job_id"], failure["owner"], failure["reason"]) == (job_id, None, "")


def test_metrics_count_nodes_and_failures(client: TestClient, three: World) -> None:
    have_node_avoided(three)
    lines = client.get("/metrics").text.splitlines()
    assert 'accordion_nodes{state="AVOIDED"} 1.0' in lines
    assert 'accordion_nodes{state="AVAILABLE"} 2.0' in lines
    assert 'accordion_node_failures{node="10.0.0.2"} 3.0' in lines
    assert 'accordion_node_failures{node="10.0.0.1"} 0.0' in lines
    three.runtime.cpus = [2.0]
    three.turn(8)
    lines = client.get("/metrics").text.splitlines()
    assert 'accordion_node_failures{node="10.0.0.2"} 3.0' in lines, "also while it is gone"


def put_nodes(team: Team) -> None:
    """The scheduler has seen a node that is alive, and one that is gone."""
    plain = {"cpus": 4.0, "gpus": 0.0, "memory_bytes": 8, "draining": False}
    alive = {**plain, "id": "id-1", "address": "10.0.0.1", "name": "gpu-1", "alive": True}
    gone = {**plain, "id": "id-2", "address": "10.0.0.2", "name": "gpu-2", "alive": False}
    with team.app.state.accordion.database.write() as session:
        session.add(ClusterRow(id=1, reachable=True, seen_at=0.0, nodes=[alive, gone]))


@pytest.mark.parametrize("role", list(Role))
def test_each_role_may_use_its_routes_of_nodes_and_no_others(team: Team, role: Role) -> None:
    put_nodes(team)
    routes = {
        (method, route.path)
        for route in api_routes(team.app)
        for method in route.methods
        if route.path.startswith(NODES)
    }
    assert routes == MAY_USE.keys(), "a route without its roles, or roles without a route"
    token = team.user("eve", role)
    for (method, path), roles in MAY_USE.items():
        body = {"reason": "test"} if path.endswith("cordon") else None
        answer = team.call(token, method, path.replace("{node}", "gpu-1"), json=body)
        assert answer.status_code == (200 if role in roles else 403), f"{method} {path}"


def test_a_cordon_and_a_restore_are_in_the_audit_log_once(team: Team) -> None:
    put_nodes(team)
    for _ in range(2):
        team.call(ADMIN, "POST", f"{NODES}/gpu-1/cordon", json={"reason": "new GPUs"})
    for _ in range(2):
        team.call(ADMIN, "POST", f"{NODES}/gpu-1/restore")
    entries = team.audit(subject="gpu-1")
    assert [(one["action"], one["before"], one["after"]) for one in entries] == [
        ("node.restored", {"reason": "new GPUs"}, None),
        ("node.cordoned", None, {"reason": "new GPUs"}),
    ]


@pytest.mark.parametrize("given", ["gpu-1", "10.0.0.1", "id-1"])
def test_a_node_is_named_by_name_address_or_id(team: Team, given: str) -> None:
    put_nodes(team)
    cordoned = team.call(ADMIN, "POST", f"{NODES}/{given}/cordon", json={}).json()
    assert (cordoned["name"], cordoned["state"]) == ("gpu-1", NodeState.CORDONED)


def test_a_node_that_is_gone_is_listed_while_it_is_cordoned(team: Team) -> None:
    put_nodes(team)
    assert [one["name"] for one in team.call(ADMIN, "GET", NODES).json()["items"]] == ["gpu-1"]
    team.call(ADMIN, "POST", f"{NODES}/gpu-2/cordon", json={})
    listed = team.call(ADMIN, "GET", NODES).json()["items"]
    assert [(one["name"], one["alive"]) for one in listed] == [("gpu-1", True), ("gpu-2", False)]
    assert team.call(ADMIN, "POST", f"{NODES}/gpu-2/restore").json()["name"] == "gpu-2"


def test_an_unknown_node_is_not_there(team: Team) -> None:
    for action, body in [("cordon", {}), ("restore", None)]:
        answer = team.call(ADMIN, "POST", f"{NODES}/gpu-9/{action}", json=body)
        assert answer.status_code == 404
        assert "there is no node 'gpu-9'; 'accordion nodes'" in answer.json()["detail"]


def test_what_happened_to_another_users_job_is_hidden(team: Team) -> None:
    put_nodes(team)
    with team.app.state.accordion.database.write() as session:
        session.add(
            NodeFailureRow(
                node="gpu-1", time=team.clock.now, job_id="j", owner="ada", attempt=1, reason="why"
            )
        )
    reasons = {
        name: team.call(team.user(name), "GET", NODES).json()["items"][0]["failures"][0]["reason"]
        for name in ("ada", "bob")
    }
    assert reasons == {"ada": "why", "bob": None}
