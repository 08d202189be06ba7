"""Packages that jobs name in `pip`: from the request over the launch to what is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi.testclient import TestClient
from pydantic import SecretStr

from accordion_service.api.app import create_app
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_workers.records.contract import PackagesRecord, PipIndex
from tests.api.conftest import LOCAL
from tests.api.team import JOBS, PLAN
from tests.api.world import DIGITS, World

PIP = {"pip": ["einops==0.8.0", "acc-beta"]}
LOGIN = "ada:s3cret-of-ada"


def submit(client: TestClient, **changes: Any) -> str:
    response = client.post(JOBS, json={**DIGITS, **PIP, **changes})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


def test_a_job_shows_what_its_packages_resolved_to(client: TestClient, world: World) -> None:
    job_id = submit(client)
    assert client.get(f"{JOBS}/{job_id}").json()["packages"] is None
    world.train(job_id)
    shown = client.get(f"{JOBS}/{job_id}").json()
    assert shown["spec"]["pip"] == PIP["pip"]
    assert shown["packages"]["packages"] == [
        {"name": "einops", "version": "0.8.0"},
        {"name": "acc-beta", "version": "1.0"},
    ]
    assert (shown["packages"]["size_bytes"], shown["packages"]["seconds"]) == (86_400, 2.0)
    assert client.get(JOBS).json()["items"][0]["packages"] == shown["packages"]


def test_an_event_says_which_packages_are_ready_and_how_long_it_took(world: World) -> None:
    job_id = world.submit(**PIP)
    world.finish(job_id)
    [event] = world.events(job_id, "packages")
    assert (len(event.data["packages"]), event.data["seconds"], event.data["attempt"]) == (
        2,
        2.0,
        1,
    )
    assert event.seq < world.events(job_id, "epoch")[0].seq


def test_a_job_without_packages_has_none(client: TestClient, world: World) -> None:
    job_id = world.submit()
    world.finish(job_id)
    shown = client.get(f"{JOBS}/{job_id}").json()
    assert (shown["packages"], shown["spec"]["pip"]) == (None, [])
    assert world.events(job_id, "packages") == []


def test_a_resumed_job_keeps_its_packages(client: TestClient, world: World) -> None:
    job_id = submit(client, training={"epochs": 300})
    world.train(job_id)
    before = client.get(f"{JOBS}/{job_id}").json()["packages"]
    world.pause(job_id)
    world.reach(job_id, Status.PAUSED)
    world.resume(job_id)
    world.train(job_id)
    assert client.get(f"{JOBS}/{job_id}").json()["packages"] == before


def test_a_dry_run_and_a_clone_keep_pip(client: TestClient) -> None:
    dry_run = client.post(f"{JOBS}?dry_run=true", json={**DIGITS, **PIP}).json()
    assert dry_run["spec"]["pip"] == PIP["pip"]
    job_id = submit(client)
    made = client.post(f"{JOBS}/{job_id}/clone", json={}).json()
    assert (made["spec"]["pip"], made["packages"]) == (PIP["pip"], None)
    other = client.post(f"{JOBS}/{job_id}/clone", json={"spec": {"pip": ["einops"]}}).json()
    assert other["spec"]["pip"] == ["einops"]


def test_a_wrong_requirement_is_refused_at_its_place(client: TestClient) -> None:
    refused = client.post(JOBS, json={**DIGITS, "pip": ["einops", "-r more.txt"]})
    assert refused.status_code == 422
    [error] = refused.json()["errors"]
    assert error["pointer"] == "/pip/1"
    assert "-r is an option of pip" in error["detail"]


@contextmanager
def disabled(world: World) -> Iterator[TestClient]:
    """Give a client of an api that installs no packages."""
    app = create_app(world.settings.model_copy(update={"pip_enabled": False}), world.clock)
    with TestClient(app, base_url=LOCAL) as client:
        yield client
    app.state.accordion.database.close()


def test_a_service_that_installs_no_packages_refuses_them(world: World) -> None:
    job_id = world.submit(**PIP)
    with disabled(world) as client:
        answers = [
            (client.post(JOBS, json={**DIGITS, **PIP}), "/pip"),
            (client.post(f"{JOBS}?dry_run=true", json={**DIGITS, **PIP}), "/pip"),
            (client.post(f"{JOBS}/{job_id}/clone", json={}), "/spec/pip"),
        ]
        assert client.post(JOBS, json=DIGITS).status_code == 201
    for answer, pointer in answers:
        assert answer.status_code == 422
        [error] = answer.json()["errors"]
        assert error["pointer"] == pointer
        assert error["detail"] == (
            "pip names 2 packages, but this service does not install packages"
            " (ACCORDION_PIP_ENABLED is false); leave pip out, and ask the operator to install them"
            " where the workers run"
        )


def test_a_queued_job_ends_if_packages_are_disabled_meanwhile(world: World) -> None:
    job_id = world.submit(**PIP)
    world.move_to(world.settings.model_copy(update={"pip_enabled": False}))
    job = world.finish(job_id)
    assert (job.status, job.reason) == (Status.FAILED, Reason.START_FAILED)
    assert "ACCORDION_PIP_ENABLED is false" in job.message


def test_a_paused_job_whose_packages_are_stored_resumes_when_they_are_disabled(
    world: World,
) -> None:
    job_id = world.submit(**PIP, training={"epochs": 300})
    world.train(job_id)
    world.pause(job_id)
    world.reach(job_id, Status.PAUSED)
    world.move_to(world.settings.model_copy(update={"pip_enabled": False}))
    world.resume(job_id)
    world.train(job_id)
    assert world.job(job_id).attempt == 2


def test_a_plan_of_a_job_with_packages_is_refused(client: TestClient) -> None:
    body = {**PLAN, "spec": {**PLAN["spec"], **PIP}}
    refused = client.post("/api/v1/plans", json=body)
    assert refused.status_code == 422
    [error] = refused.json()["errors"]
    assert error["pointer"] == "/spec/pip"
    assert "a step is measured with the packages of the workers alone" in error["detail"]


def test_only_a_job_with_packages_is_launched_with_the_index(world: World) -> None:
    index = PipIndex(url=f"https://{LOGIN}@a.example/simple", extra_urls="https://b.example")
    urls = {"pip_index_url": index.url, "pip_extra_index_url": index.extra_urls}
    secret = {name: SecretStr(url) for name, url in urls.items()}
    world.move_to(world.settings.model_copy(update=secret))
    with_packages, without = world.submit(**PIP), world.submit()
    for job_id in (with_packages, without):
        world.finish(job_id)
    assert world.runtime.jobs[with_packages].launch.pip_index == index
    assert world.runtime.jobs[without].launch.pip_index is None


def test_a_start_whose_packages_take_long_to_resolve_is_left_alone(world: World) -> None:
    job_id = world.submit(**PIP)
    world.runtime.stuck = {job_id}
    world.reach(job_id, Status.STARTING)
    fake = world.runtime.jobs[job_id]
    fake.phase, fake.says = "resolving", "resolving the packages of the job: einops==0.8.0"
    for _ in range(5):
        world.clock.now += world.settings.start_timeout_s
        world.turn(2)
    job = world.job(job_id)
    assert (job.status, job.attempt, job.message) == (Status.STARTING, 1, fake.says)
    fake.phase, world.runtime.stuck = "starting", set()
    assert world.finish(job_id).attempt == 1


def test_packages_are_recorded_while_the_job_starts(client: TestClient, world: World) -> None:
    job_id = world.submit(**PIP)
    world.runtime.stuck = {job_id}
    world.reach(job_id, Status.STARTING)
    world.runtime.jobs[job_id].phase = "resolving"
    world.runtime.report(job_id, PackagesRecord(packages=(), size_bytes=0, seconds=1.0))
    world.turn(2)
    shown = client.get(f"{JOBS}/{job_id}").json()
    assert (shown["status"], shown["packages"]["packages"]) == ("STARTING", [])
