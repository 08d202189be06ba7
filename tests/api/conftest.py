"""Fixtures of the api tests: a world to turn by hand, a client of its api, and a live service on a
real port.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event
from sqlalchemy.engine import make_url

from accordion_client.sdk.client import IDLE_CONNECTION_S
from accordion_service.api.app import create_app
from accordion_service.scheduler.loop import run_scheduler
from accordion_service.settings.settings import load_settings
from accordion_service.store.engine.database import Database
from accordion_service.store.engine.postgres import SessionLimits
from accordion_service.store.reads.cluster import SCHEDULER_LEASE
from accordion_service.store.tables.models import LeaseRow
from tests.api.fake_runtime import FakeRuntime
from tests.api.team import ADMIN, Team
from tests.api.webhook_receiver import Receiver, run_receiver
from tests.api.world import Clock, World
from tests.database_kinds import REFUSED_EARLY

LOCAL = "http://127.0.0.1"
API_THREAD = "AnyIO worker thread"
"""Name of the threads in which the api reads and writes."""
PATIENT = SessionLimits(idle_in_transaction_s=120.0)
"""A test process on a busy machine may get no CPU for ten seconds."""
START_LIMIT_S = 120.0
"""Only ends a test that fails."""
refused_early = pytest.mark.sqlite_only(REFUSED_EARLY)


@pytest.fixture(scope="module", autouse=True)
def no_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients trust no certificate authority: reading those of a machine takes each 40 ms."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("certificates")))
        environment.delenv("SSL_CERT_FILE", raising=False)
        yield


@pytest.fixture(scope="module", autouse=True)
def opened_databases() -> Iterator[set[str]]:
    """Kinds of databases that were opened since the last test ended, also by fixtures that the
    tests of a file share.
    """
    opened, open_database = set(), Database.__init__

    def note_and_open(database: Database, url: str, **more: Any) -> None:
        opened.add(make_url(url).get_backend_name())
        open_database(database, url, **{"limits": PATIENT, **more})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "__init__", note_and_open)
        yield opened


@pytest.fixture(autouse=True)
def check_databases(request: pytest.FixtureRequest, opened_databases: set[str]) -> Iterator[None]:
    """Fail a test that opens a database, and does not run on both kinds."""
    statements: list[str] = []

    def note_statement(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if threading.current_thread().name == API_THREAD:
            statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note_statement)
    yield
    event.remove(Engine, "before_cursor_execute", note_statement)
    opened = opened_databases.copy()
    opened_databases.clear()
    check_opened(request.node, opened)
    check_statements(request.node, statements)


def check_statements(item: pytest.Item, statements: Sequence[str]) -> None:
    """Fail if the api asked its database in a test whose requests are refused before that."""
    mark = item.get_closest_marker("sqlite_only")
    if mark is not None and mark.args == (REFUSED_EARLY,) and statements:
        pytest.fail(
            f"the api reached the database ({statements[0]!r}): remove the mark sqlite_only"
        )


def check_opened(item: pytest.Item, opened: set[str]) -> None:
    """Fail if a test opened no PostgreSQL where it should have, or SQLite and would never open
    PostgreSQL.
    """
    kinds = getattr(item, "callspec", None)
    kind = kinds.params.get("database_url") if kinds else None
    shared = kinds.params.get("shared_database_url") if kinds else None
    # What the tests of a file share is opened before the first of them only.
    if (kind == "postgresql" and kind not in opened) or (shared, opened) == (
        "postgresql",
        {"sqlite"},
    ):
        pytest.fail("the test takes the URL of a database and opens no database at that URL")
    is_exempt = item.get_closest_marker("sqlite_only") or shared
    if kind is None and "sqlite" in opened and not is_exempt:
        pytest.fail(
            f"the test opens {sorted(opened)} and runs once: open the database at `database_url`"
            " or `shared_database_url`, which runs it on SQLite and on PostgreSQL"
        )


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[World]:
    world = World(tmp_path, database_url=database_url)
    yield world
    world.close()


@pytest.fixture
def client(world: World) -> Iterator[TestClient]:
    app = create_app(world.settings, world.clock)
    with TestClient(app, base_url=LOCAL) as client:
        yield client
    app.state.accordion.database.close()


@dataclass
class Live:
    """An api on a port and a scheduler in a thread, over one database."""

    url: str
    runtime: FakeRuntime
    draining: threading.Event
    """When set, the service shuts down."""

    def client(self) -> httpx2.Client:
        return httpx2.Client(
            base_url=self.url, timeout=30, limits=httpx2.Limits(keepalive_expiry=IDLE_CONNECTION_S)
        )


@pytest.fixture
def live(tmp_path: Path, database_url: str) -> Iterator[Live]:
    yield from serve_live(tmp_path, database_url=database_url)


@pytest.fixture(scope="module")
def shared_live(
    tmp_path_factory: pytest.TempPathFactory, shared_database_url: str
) -> Iterator[Live]:
    yield from serve_live(tmp_path_factory.mktemp("live"), database_url=shared_database_url)


def serve_live(home: Path, **more: Any) -> Iterator[Live]:
    settings = load_settings(
        home=home, port=0, drain_interval_s=0.05, survey_interval_s=0.1, **more
    )
    app = create_app(settings)
    runtime, stop = FakeRuntime(clock=time.time), threading.Event()
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=2)
    )
    threads = [
        threading.Thread(target=server.run),
        threading.Thread(target=run_scheduler, args=(settings, runtime), kwargs={"stop": stop}),
    ]
    for thread in threads:
        thread.start()
    try:
        _await_scheduler(app.state.accordion.database)
        yield Live(url=_address(server), runtime=runtime, draining=app.state.accordion.draining)
    finally:
        app.state.accordion.draining.set()
        server.should_exit = True
        stop.set()
        for thread in threads:
            thread.join(timeout=30)
        app.state.accordion.database.close()


def _await_scheduler(database: Database) -> None:
    """Wait until the scheduler has opened the database: the test did not, where it is shared."""
    limit, has_begun = time.monotonic() + START_LIMIT_S, False
    while not has_begun:
        assert time.monotonic() < limit, f"the scheduler did not begin within {START_LIMIT_S:g} s"
        time.sleep(0.01)
        with database.read() as session:
            has_begun = session.get(LeaseRow, SCHEDULER_LEASE) is not None


def _address(server: uvicorn.Server) -> str:
    limit = time.monotonic() + START_LIMIT_S
    while not server.started:
        assert time.monotonic() < limit, f"the api did not start within {START_LIMIT_S:g} s"
        time.sleep(0.01)
    return f"{LOCAL}:{server.servers[0].sockets[0].getsockname()[1]}"


@pytest.fixture
def team(tmp_path: Path, database_url: str) -> Iterator[Team]:
    settings = load_settings(home=tmp_path, admin_token=ADMIN, database_url=database_url)
    app = create_app(settings, clock := Clock())
    with TestClient(app, base_url=LOCAL, follow_redirects=False) as client:
        yield Team(app, client, clock)
    app.state.accordion.database.close()


@pytest.fixture
def preempting(tmp_path: Path, database_url: str) -> Iterator[World]:
    """A cluster of four CPUs that pauses jobs for more important ones."""
    world = World(tmp_path, database_url=database_url, preempt_for_priority=True)
    yield world
    world.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with run_receiver() as receiver:
        yield receiver
