"""Predicted steps of a job, from the request over the scheduler to the answer."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.errors import RuntimeUnavailable
from accordion_service.scheduler.plans import PLAN_LIMIT_S
from accordion_service.store.writes.plans import KEPT_S, MAX_OPEN
from accordion_workers.records.contract import PlanResult
from tests.api.conftest import refused_early
from tests.api.fake_plans import FOUND
from tests.api.test_code import GOOD, SHA, upload
from tests.api.world import World

PLANS = "/api/v1/plans"


def body(**changes: Any) -> dict[str, Any]:
    spec = {"task": {"name": "digits-mlp"}, "workers": {"max": 4}}
    return {"spec": spec, "link": {"mbit_per_s": 100.0, "latency_ms": 8.0}, **changes}


def add(client: TestClient, **changes: Any) -> dict[str, Any]:
    response = client.post(PLANS, json=body(**changes))
    assert response.status_code == 202, response.text
    plan: dict[str, Any] = response.json()
    assert response.headers["location"] == f"{PLANS}/{plan['id']}"
    return plan


def view(client: TestClient, plan: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"{PLANS}/{plan['id']}").json()
    return found


def test_a_plan_is_measured_on_the_cluster_and_answered(client: TestClient, world: World) -> None:
    plan = add(client, measure_s=2.0)
    assert (plan["status"], plan["predictions"], plan["compute_s"]) == ("QUEUED", [], None)
    world.turn()
    assert view(client, plan)["status"] == "RUNNING"
    world.turn()
    done = view(client, plan)
    assert (done["status"], done["compute_s"]) == ("SUCCEEDED", 0.2)
    assert done["predictions"][0]["options"] == {"rank": 4}
    [task] = world.runtime.measured
    assert (task.spec.workers.max, task.latency_s, task.bytes_per_s) == (4, 0.008, 12.5e6)
    assert task.measure_s == 2.0


def test_a_plan_for_a_job_with_data_is_refused_with_the_way_out(client: TestClient) -> None:
    spec = {**body()["spec"], "data": {"words": "/mnt/words", "train": "s3://bucket/train"}}
    answer = client.post(PLANS, json=body(spec=spec))
    [error] = answer.json()["errors"]
    assert (answer.status_code, error["pointer"]) == (422, "/spec/data/train")
    assert "data names 'train' at s3://bucket/train, which is not fetched" in error["detail"]
    assert "run 'accordion plan' on a machine that has the data" in error["detail"]


def test_a_plan_gets_the_paths_of_data_on_the_workers(client: TestClient, world: World) -> None:
    add(client, spec={**body()["spec"], "data": {"words": "/mnt/words"}})
    world.turn(2)
    assert world.runtime.measured[0].env == {"ACCORDION_DATA_WORDS": "/mnt/words"}


def test_plans_run_one_at_a_time_in_the_order_of_their_requests(
    client: TestClient, world: World
) -> None:
    first, second = add(client), add(client)
    world.runtime.plan_result = None
    world.turn(3)
    assert [view(client, plan)["status"] for plan in (first, second)] == ["RUNNING", "QUEUED"]
    world.runtime.plan_result = PlanResult(error="the model does not fit into 2 GB")
    world.turn(4)
    found = [view(client, plan) for plan in (first, second)]
    assert [(plan["status"], plan["message"]) for plan in found] == [
        ("FAILED", "the model does not fit into 2 GB")
    ] * 2
    assert [task.id for task in world.runtime.measured] == [first["id"], second["id"]]


def test_a_plan_survives_the_scheduler_that_started_it(client: TestClient, world: World) -> None:
    plan = add(client)
    world.turn()
    world.runtime.forget_plans()
    world.kill_scheduler()
    world.turn(2)
    assert view(client, plan)["status"] == "SUCCEEDED"
    assert [task.id for task in world.runtime.measured] == [plan["id"]] * 2


@pytest.mark.parametrize("failure", [RuntimeUnavailable("Ray is away"), ValueError("a bug")])
def test_a_plan_that_cannot_be_started_waits_and_blocks_no_job(
    client: TestClient, world: World, failure: Exception
) -> None:
    world.runtime.plan_failure = failure
    plan = add(client)
    job_id = world.submit()
    world.finish(job_id)
    assert view(client, plan)["status"] == "RUNNING"
    assert world.runtime.measured == []
    world.runtime.plan_failure = None
    world.turn(2)
    assert view(client, plan)["status"] == "SUCCEEDED"


def test_a_plan_is_measured_again_after_the_scheduler_was_away_for_hours(
    client: TestClient, world: World
) -> None:
    plan = add(client)
    world.turn()
    world.runtime.forget_plans()
    world.clock.now += 10 * PLAN_LIMIT_S
    world.kill_scheduler()
    world.turn(2)
    assert view(client, plan)["status"] == "SUCCEEDED"


def test_a_scheduler_that_another_replaced_measures_no_longer(
    client: TestClient, world: World
) -> None:
    world.runtime.plan_result = None
    plan, first = add(client), world.scheduler
    world.turn()
    world.kill_scheduler()
    world.turn()
    assert not first.run_once()
    assert world.runtime.ended_plans == [plan["id"]]


def test_a_plan_without_an_answer_fails_with_what_it_needs(
    client: TestClient, world: World
) -> None:
    world.runtime.plan_result = None
    plan = add(client)
    world.turn(2)
    world.clock.now += PLAN_LIMIT_S
    world.turn(2)
    failed = view(client, plan)
    assert failed["status"] == "FAILED"
    assert "did not end within 600 s; it needs 1 free CPUs on a node" in failed["message"]
    assert world.runtime.ended_plans == [plan["id"]]


def test_a_cancelled_plan_is_measured_no_longer_and_the_next_one_is(
    client: TestClient, world: World
) -> None:
    world.runtime.plan_result = None
    running, waiting, last = add(client), add(client), add(client)
    world.turn(2)
    for plan in (running, waiting, waiting):
        cancelled = client.delete(f"{PLANS}/{plan['id']}")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "CANCELLED")
    world.runtime.plan_result = PlanResult(result=FOUND)
    world.turn(2)
    assert [view(client, plan)["status"] for plan in (running, waiting, last)] == [
        "CANCELLED",
        "CANCELLED",
        "SUCCEEDED",
    ]
    assert world.runtime.ended_plans == [running["id"]]
    assert [task.id for task in world.runtime.measured] == [running["id"], last["id"]]


def test_a_plan_that_has_ended_cannot_be_cancelled(client: TestClient, world: World) -> None:
    plan = add(client)
    world.turn(2)
    refused = client.delete(f"{PLANS}/{plan['id']}")
    assert refused.status_code == 409
    assert "it is SUCCEEDED" in refused.json()["detail"]
    assert client.delete(f"{PLANS}/none").status_code == 404


def test_a_plan_gets_the_uploaded_code_of_its_job(client: TestClient, world: World) -> None:
    upload(client, GOOD)
    spec = {**body()["spec"], "code": SHA}
    plan = add(client, spec=spec)
    world.turn(2)
    assert view(client, plan)["status"] == "SUCCEEDED"
    assert world.runtime.plan_codes == [GOOD]


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"spec": {"task": {"name": "digits-mlp"}, "workers": {"max": 1}}}, "/spec/workers/max"),
        ({"spec": {**body()["spec"], "code": "0" * 64}}, "/spec/code"),
        ({"spec": {**body()["spec"], "workers": {"max": 2, "gpus": 1}}}, "/spec/workers/gpus"),
        ({"spec": {"task": {"name": "guest"}, "workers": {"max": 2}}}, "/spec/task/name"),
        ({"spec": {"task": {"name": "no-such-task"}}}, "/spec/task"),
        ({"link": {"mbit_per_s": 0.0}}, "/link/mbit_per_s"),
        ({"link": {"mbit_per_s": 5e-324}}, "/link/mbit_per_s"),  # steps would never end
        ({"measure_s": 61.0}, "/measure_s"),
        ({"more": 1}, "/more"),
    ],
)
@refused_early
def test_a_wrong_request_is_refused_at_its_field(
    client: TestClient, changes: dict[str, Any], pointer: str
) -> None:
    response = client.post(PLANS, json=body(**changes))
    assert response.status_code == 422
    assert pointer in {error["pointer"] for error in response.json()["errors"]}


def test_an_unknown_plan_is_not_found_and_one_is_kept_for_a_day(
    client: TestClient, world: World
) -> None:
    assert client.get(f"{PLANS}/none").status_code == 404
    plan = add(client)
    world.turn(2)
    world.clock.now += KEPT_S - 1.0
    add(client)
    assert client.get(f"{PLANS}/{plan['id']}").status_code == 200
    world.clock.now += 1.0
    add(client)
    assert client.get(f"{PLANS}/{plan['id']}").status_code == 404


def test_more_plans_than_can_wait_are_refused_until_some_are_done(
    client: TestClient, world: World
) -> None:
    for _ in range(MAX_OPEN):
        add(client)
    refused = client.post(PLANS, json=body())
    assert refused.status_code == 503
    assert "at most 20" in refused.json()["detail"]
    world.turn(2)
    add(client)
