"""Both clients: the same methods with exact types, and the real service."""

from __future__ import annotations

import asyncio
import inspect
import sys
from contextlib import aclosing
from pathlib import Path

import httpx2
import pytest

from accordion_client import AsyncClient, Client, RetryBudget
from accordion_client.machine.connection import connect_async
from accordion_service.schemas.overrides import OverrideRequest
from tests.api.conftest import Live
from tests.programs import run_program
from tests.unit.service.conftest import MakeClient

ROOT = Path(__file__).parents[3]
SPEC = {"task": {"name": "digits-mlp"}, "training": {"epochs": 3}}
LONG = {"task": {"name": "digits-mlp"}, "training": {"epochs": 2000}}
LIFETIME = {"close", "aclose", "__enter__", "__exit__", "__aenter__", "__aexit__"}

TYPES = """
from collections.abc import AsyncGenerator, Coroutine, Iterator
from datetime import datetime
from typing import Any, assert_type

from accordion_service.schemas.history import GapView
from accordion_service.schemas.jobs import EventView, JobPage, JobView, ProgressView
from accordion_client import AsyncClient, Client
from accordion_client.sdk.request_sender import RequestSender
from accordion_client.sdk.shared_methods import shared_method

Event = EventView | ProgressView | GapView

def blocking(client: Client) -> None:
    assert_type(client.submit({}, idempotency_key="a"), JobView)
    assert_type(client.events("a", after=3), Iterator[Event])
    client.resize("a", 1)  # error: call-arg
    client.find(3)  # error: arg-type
    assert_type(client.jobs(status=["RUNNING"], created_after=datetime.now(), limit=1), JobPage)
    client.jobs(stats=["RUNNING"])  # error: call-arg
    client.jobs(owner=3)  # error: arg-type
    client.audit(user="ada", limit=1)
    client.audit(usr="ada")  # error: call-arg

async def awaiting(client: AsyncClient) -> None:
    found: Coroutine[Any, Any, JobView] = client.find("a")
    assert_type(await found, JobView)
    assert_type(await client.submit({}, idempotency_key="a"), JobView)
    assert_type(client.events("a", after=3), AsyncGenerator[Event, None])
    client.cancel("a")  # error: unused-coroutine
    await client.find(3)  # error: arg-type

class Requests(RequestSender):
    @shared_method
    async def jobs(self) -> JobPage:
        return await self._request(JobPage, "GET", "/jobs")

    @shared_method
    async def first(self) -> JobView:
        await self.jobs()  # error: call-overload
        return await self._request(JobView, "GET", "/jobs/a")
"""
"""Code that mypy accepts, except for the errors that its comments name."""


def methods(client: type) -> dict[str, inspect.Signature]:
    """Public methods of a client, without the types that they return."""
    found = inspect.getmembers(client, inspect.isfunction)
    return {
        name: inspect.signature(method).replace(return_annotation=None)
        for name, method in found
        if not name.startswith("_") and name not in LIFETIME
    }


def test_both_clients_have_the_same_methods_with_the_same_descriptions() -> None:
    assert methods(Client) == methods(AsyncClient)
    assert len(methods(Client)) > 50
    for name in methods(Client):
        assert inspect.getdoc(getattr(Client, name)) == inspect.getdoc(getattr(AsyncClient, name))


def test_the_signature_of_a_method_says_what_it_returns() -> None:
    shown = {client: inspect.signature(client.logs) for client in (Client, AsyncClient)}
    assert shown[Client].return_annotation == "Generator[str, None]"
    assert shown[AsyncClient].return_annotation == "AsyncGenerator[str, None]"
    assert inspect.iscoroutinefunction(AsyncClient.submit)
    assert not inspect.iscoroutinefunction(Client.submit)


def test_the_types_of_both_clients_are_exact(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(TYPES)
    done = run_program(
        [sys.executable, "-m", "mypy", "--hide-error-context", "--no-pretty", str(file)], cwd=ROOT
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    found = {(int(line.split(":")[1]), line.rpartition("[")[2].rstrip("]")) for line in errors}
    expected = {
        (number, line.partition("# error: ")[2])
        for number, line in enumerate(TYPES.splitlines(), 1)
        if "# error: " in line
    }
    assert found == expected, done.stdout + done.stderr


def test_a_job_is_followed_from_its_submission_to_its_end(
    make_client: MakeClient, service: Live
) -> None:
    client = make_client(service.url)
    job = client.submit(SPEC)
    events = list(client.events(job.id))
    assert (events[-1].type, client.find(job.id[:20]).status) == ("end", "SUCCEEDED")
    assert [epoch.epoch for epoch in client.all_epochs(job.id)] == [0, 1, 2]
    lines = list(client.logs(job.id))
    followed = [line.text for chunk in client.follow_logs(job.id) for line in chunk.lines]
    assert [line.partition("] ")[2] for line in lines] == followed
    assert client.dry_run_clone(job.id, {"name": "again"}).spec.name == "again"
    assert client.clone(job.id, {"name": "again"}).name == "again"


def test_a_running_job_is_changed(make_client: MakeClient, service: Live) -> None:
    client = make_client(service.url)
    job = client.submit(LONG)
    events = client.events(job.id)
    assert next(event for event in events if getattr(event, "type", "") == "epoch")
    events.close()
    request = OverrideRequest.model_validate({"target": "compression", "level": "low"})
    made = client.override(job.id, request)
    assert [found.id for found in client.overrides(job.id).items] == [made.id]
    assert client.change(job.id, labels={"team": "vision"}).labels == {"team": "vision"}
    assert job.id in {found.id for found in client.jobs(label=["team:vision"]).items}
    assert client.cancel(job.id).status == "STOPPING"


def test_a_client_in_a_thread_with_an_event_loop_may_block(service: Live) -> None:
    async def read() -> list[str]:
        with Client(service.url) as client:
            client.submit(SPEC)
            return [job.id for job in client.all_jobs()]

    assert asyncio.run(read())


def test_requests_of_one_asynchronous_client_run_beside_each_other(service: Live) -> None:
    async def run() -> tuple[list[str], str]:
        async with AsyncClient(service.url) as client:
            jobs = await asyncio.gather(*(client.submit(LONG) for _ in range(3)))
            async with aclosing(client.events(jobs[0].id)) as events:
                first = await anext(events)
                await asyncio.gather(*(client.cancel(job.id) for job in jobs))
            return [job.id for job in jobs], getattr(first, "type", "progress")

    ids, first = asyncio.run(run())
    assert len(set(ids)) == 3
    assert first == "status"


def test_a_cancelled_task_leaves_its_stream(service: Live) -> None:
    async def run() -> bool:
        async with AsyncClient(service.url) as client:
            job = await client.submit(LONG)
            seen = asyncio.Event()

            async def follow() -> None:
                async for _ in client.events(job.id):
                    seen.set()

            task = asyncio.create_task(follow())
            await seen.wait()
            task.cancel()
            await asyncio.wait([task])
            await client.cancel(job.id)
            return task.cancelled()

    assert asyncio.run(run())


def test_waiting_for_a_service_does_not_block_the_event_loop() -> None:
    failed = asyncio.Event()

    def fail(_: httpx2.Request) -> httpx2.Response:
        failed.set()
        raise httpx2.ConnectError("refused")

    async def run() -> bool:
        hours = RetryBudget(delay_s=9999.0, total_s=1e6, random=lambda: 1.0)
        transport = httpx2.MockTransport(fail)
        async with AsyncClient("http://service", transport=transport, retries=hours) as client:
            asking = asyncio.create_task(client.jobs())
            await failed.wait()
            asking.cancel()
            await asyncio.wait([asking])
            return asking.cancelled()

    assert asyncio.run(run())


def test_an_asynchronous_client_is_connected_to_the_configured_service(
    service: Live, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACCORDION_HOME", str(tmp_path))
    monkeypatch.setenv("ACCORDION_URL", service.url)

    async def run() -> bool:
        async with connect_async() as client:
            return (await client.ready()).ready

    assert asyncio.run(run())
