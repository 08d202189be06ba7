"""What every test folder may use: `require` for things a machine may lack, `ray_cluster` for one
shared Ray head.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest
import structlog
from hypothesis import settings

from accordion_service.store.migrations import upgrade
from tests.compiled_statements import share_compiled_statements
from tests.crashed_processes import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from tests.database_kinds import DATABASE_FIXTURES, check_exception, kinds_of, uses_postgresql
from tests.last_start import pytest_runtest_setup as pytest_runtest_setup
from tests.pooled_databases import PooledDatabases
from tests.postgres import Postgres, find_program, run_postgres
from tests.process_end import end_with_parent, ended_sessions, keep_crash_trace

# in CI all runs try the same examples: what chance finds is for us, not for whoever submits
# something else.
settings.register_profile(
    "ours", deadline=None, derandomize=os.environ.get("ACCORDION_REQUIRE") == "all"
)
settings.load_profile("ours")

# Services run in threads of this process. A thread that prints while pytest replaces `sys.stdout`
# crashes the process (CPython < 3.13 prints to a borrowed reference), so for all tests the log
# lines of services go nowhere.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.JSONRenderer(default=str),
    ],
    logger_factory=structlog.ReturnLoggerFactory(),
    # A cached logger would escape `capture_logs`.
    cache_logger_on_first_use=False,
)

share_compiled_statements()

# what is made for a test is for this machine's user only while it runs; tests of tokens set theirs.
os.environ.setdefault("ACCORDION_NO_AUTH", "1")
LIVE_FOLDERS, SERIAL_FOLDERS = {"browser", "e2e"}, {"netlab"}
"""Folders of tests that look at a whole service from outside, of which few run at a time, and of
those that measure the machine: no other test runs beside them.
"""
FOLDERS_OF_PART = {"live": LIVE_FOLDERS, "serial": SERIAL_FOLDERS, "elastic": {"elastic"}}
"""Folders that hold all tests of the part; the other folders are not even collected for it."""
LONGEST_FILES = (
    "browser/test_pages",
    "e2e/test_real_autoscaler",
    "browser/test_odd_states",
    "e2e/test_ray_train_guest",
    "e2e/test_wheel",
    "e2e/test_restored_service",
    "e2e/test_preempted_job",
    "browser/test_marks",
    "e2e/test_demo_and_ends",
    "e2e/test_main_job",
    "e2e/test_guest_in_service",
    "browser/test_accessibility",
    "e2e/test_own_code",
    "e2e/test_stopped_service",
    "e2e/test_up_and_demo",
    "elastic/test_nodes",
    "elastic/test_faults",
    "elastic/test_new_nodes",
    "elastic/test_resizes",
    "elastic/test_checkpoint_faults",
    "elastic/test_link_changes",
    "elastic/test_bad_tasks",
    "elastic/test_crashes",
    "elastic/test_ray_train_engine",
    "api/test_schema",
    "distributed/test_torchrun",
    "distributed/test_frameworks",
    "service/test_cli_simulate",
    "distributed/test_local_steps_in_frameworks",
    "workers/test_laws_of_storage",
    "distributed/test_loop_math",
    "distributed/test_composition",
    "distributed/test_simulation",
    "distributed/test_bottlenecks",
    "distributed/test_planned_exchanges",
)
"""Files that take longest, as `folder/name`. They run first, so that none is still running after
everything else has finished.
"""
RAY_START_TIMEOUT_S, RAY_START_ATTEMPTS = 180.0, 4
"""A loaded two-core machine needs up to 20 s; a very loaded one more than 60."""
if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads of torch that wait for each other spin: with two processes on two CPUs that is most of
    # their time. Those of tests that ask for two threads sleep.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
_XDIST_NUMBER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = range(
    20_000 + _XDIST_NUMBER, 32_000, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
)
"""Where nobody listens by chance: below those that Linux picks by itself. Each process of
pytest-xdist has its own.
"""
_given: set[int] = set()
"""Ports of these that this process has given away."""
RAY_ENV = {
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}
"""The end does not wait for a drain, and no traffic goes outside. Workers have the priority of
other processes: Ray gives them niceness 15, with which they get 3 % of a CPU beside a busy process.
"""
os.environ["RAY_AUTH_MODE"] = RAY_ENV["RAY_AUTH_MODE"]
# Ray reads the token once in the life of a process, so all clusters of a session share it.
RAY_AUTH_TOKEN = os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(16))
# Ray reads the mode when it is imported, and test modules that are collected before the cluster
# starts import it.


CRASHES = os.environ.get("ACCORDION_CRASHES")
"""Folder for the stacks of the threads of a test process that crashes; `make` prints them. See
`keep_crash_trace`.
"""


NewDatabase = Callable[[], AbstractContextManager[str]]


class Require:
    """Asks for what not every machine has: skips the test with a reason, or fails it where
    ACCORDION_REQUIRE=all.
    """

    def __init__(self, *, everything: bool) -> None:
        self._everything = everything

    def __call__(self, *programs: str) -> Path:
        """Path of the first of these programs that is installed."""
        path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
        found = (shutil.which(program, path=path) for program in programs)
        one = next(filter(None, found), None)
        names = " or ".join(map(repr, programs))
        return Path(one) if one else self.missing(f"program {names} is not installed")

    def package(self, name: str) -> None:
        """Go on if a Python package is installed."""
        if importlib.util.find_spec(name) is None:
            self.missing(f"the package {name!r} is not installed")

    def data(self, name: str) -> Path:
        """Path of a data set below the folder that ACCORDION_DATA names."""
        folder = Path(os.environ.get("ACCORDION_DATA", "data")).resolve() / name
        return (
            folder if folder.exists() else self.missing(f"there is no {folder}; set ACCORDION_DATA")
        )

    def missing(self, reason: str) -> NoReturn:
        """Skip for this reason, or fail where everything is required."""
        if self._everything:
            pytest.fail(f"{reason}, and ACCORDION_REQUIRE=all allows no skips")
        pytest.skip(reason)


@pytest.fixture(scope="session")
def require() -> Require:
    """`require("promtool")` gives the program's path, `require.data("name")` a data set's."""
    return Require(everything=os.environ.get("ACCORDION_REQUIRE") == "all")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now, nor is given to somebody else before it is
    used.
    """
    while True:
        port = secrets.choice([port for port in _PORTS if port not in _given])
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test` and `make test-elastic` run the tests in parts."""
    parts = ["parallel", "live", "serial", "elastic"]
    parser.addoption("--part", choices=parts, help="run only this part of the tests")
    parser.addoption(
        "--postgresql", action="store_true", help="run what `make test` runs on SQLite"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Keep the stacks of a crash in a file: standard error of a process of pytest-xdist is easily
    lost.
    """
    if CRASHES:
        keep_crash_trace(Path(CRASHES))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Keep them until the process is gone: pytest stops here, and Ray took the signals over when it
    connected.
    """
    if CRASHES:
        keep_crash_trace(Path(CRASHES))


def folder_of(path: Path) -> str:
    """Name of the folder below `tests` that a path lies in; empty for `tests` and for other
    folders.
    """
    tests = Path(__file__).parent
    return next(iter(path.relative_to(tests).parts), "") if path.is_relative_to(tests) else ""


def part_of(item: pytest.Item) -> str:
    """Name of the part that a test belongs to.

    Raises:
        UsageError: it needs Ray and would run beside tests that leave Ray no time, or no part
            would collect it.
    """
    folder = folder_of(item.path)
    if item.get_closest_marker("elastic"):
        if folder not in FOLDERS_OF_PART["elastic"]:
            raise pytest.UsageError(f"{item.nodeid} has the mark elastic: move it to tests/elastic")
        return "elastic"
    part = next(
        (part for part in ("live", "serial") if folder in FOLDERS_OF_PART[part]), "parallel"
    )
    if part == "parallel" and item.get_closest_marker("ray"):
        raise pytest.UsageError(
            f"{item.nodeid} needs Ray: move it to tests/e2e, or to tests/elastic"
        )
    return part


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders without a test of the part: to import them takes longer than some parts."""
    part = config.getoption("part")
    folder = folder_of(collection_path) if part else ""
    if not folder:
        return None
    if part == "parallel":
        return True if folder in LIVE_FOLDERS | SERIAL_FOLDERS else None
    return None if folder in FOLDERS_OF_PART[part] else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of the other parts, and put the longest files first."""
    if config.getoption("postgresql"):
        config.hook.pytest_deselected(items=[item for item in items if not uses_postgresql(item)])
        items[:] = [item for item in items if uses_postgresql(item)]
    part = config.getoption("part")
    if part is None:
        return
    config.hook.pytest_deselected(items=[item for item in items if part_of(item) != part])
    rank = {name: number for number, name in enumerate(LONGEST_FILES)}
    items[:] = sorted(
        (item for item in items if part_of(item) == part),
        key=lambda item: rank.get(f"{item.path.parent.name}/{item.path.stem}", len(rank)),
    )


def pytest_collection_finish() -> None:
    """Leave what collecting made out of later garbage collections, which tests call by themselves:
    with all test modules each takes more than a second.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A part in which no test was selected has passed: the others may hold what was asked for."""
    ended_sessions.append(session)
    if (
        session.config.getoption("part")
        and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
    ):
        session.exitstatus = pytest.ExitCode.OK


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the databases of a test that uses one; its mark `sqlite_only` says why PostgreSQL is
    none of them.

    Raises:
        UsageError: the mark gives no reason, or the test uses no database.
    """
    used = [name for name in DATABASE_FIXTURES if name in metafunc.fixturenames]
    mark = metafunc.definition.get_closest_marker("sqlite_only")
    if mark is not None:
        check_exception(metafunc.definition.nodeid, mark, used)
        return
    for name in used:
        metafunc.parametrize(name, kinds_of(metafunc), indirect=True)


@pytest.fixture(scope="session")
def postgres(require: Require) -> Iterator[Postgres]:
    """A PostgreSQL server of this test session, where the server's programs are installed."""
    with run_postgres(find_program("initdb") or require("initdb"), free_port) as server:
        yield server


@pytest.fixture(scope="session")
def pooled_databases(postgres: Postgres) -> PooledDatabases:
    """Migrated databases of the PostgreSQL server."""
    return PooledDatabases(postgres)


@pytest.fixture
def postgres_url(pooled_databases: PooledDatabases) -> Iterator[str]:
    """URL of a migrated PostgreSQL database of this test."""
    url = pooled_databases.take()
    yield url
    pooled_databases.give_back(url)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with all tables, to be copied."""
    file = tmp_path_factory.mktemp("migrated") / "accordion.db"
    upgrade(f"sqlite:///{file}")
    return file


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a migrated database of this test, which runs on SQLite and on PostgreSQL."""
    if getattr(request, "param", "sqlite") == "postgresql":
        return request.getfixturevalue("postgres_url")
    file = shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "accordion.db")
    return f"sqlite:///{file}"


@pytest.fixture
def new_database(
    database_url: str, migrated_file: Path, request: pytest.FixtureRequest
) -> NewDatabase:
    """Makes migrated databases of the kind of `database_url`, each for one block."""

    @contextmanager
    def make() -> Iterator[str]:
        if not database_url.startswith("postgresql"):
            with tempfile.TemporaryDirectory() as folder:
                yield f"sqlite:///{shutil.copy(migrated_file, folder)}"
            return
        databases: PooledDatabases = request.getfixturevalue("pooled_databases")
        url = databases.take()
        try:
            yield url
        finally:
            databases.give_back(url)

    return make


@pytest.fixture
def empty_url(database_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of another database of the kind of `database_url`, without tables."""
    if not database_url.startswith("postgresql"):
        yield f"sqlite:///{tmp_path}/empty.db"
        return
    server = request.getfixturevalue("postgres")
    url = server.create_database(migrated=False)
    yield url
    server.drop_database(url)


@pytest.fixture(scope="module")
def shared_database_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """URL of a migrated database of the tests of a file, which run on SQLite and on PostgreSQL."""
    if getattr(request, "param", "sqlite") == "postgresql":
        databases = request.getfixturevalue("pooled_databases")
        url = databases.take()
        yield url
        databases.give_back(url)
        return
    folder = tmp_path_factory.mktemp("shared")
    file = shutil.copy(request.getfixturevalue("migrated_file"), folder / "accordion.db")
    yield f"sqlite:///{file}"


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """Address of a Ray head of this test session: 8 logical CPUs, token authentication.

    The environment holds what a driver needs (RAY_AUTH_MODE, RAY_AUTH_TOKEN):
    `ray.init(address=ray_cluster, ...)`.
    """
    with (
        pytest.MonkeyPatch.context() as environment,
        tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder,
    ):
        for name, value in (RAY_ENV | {"RAY_AUTH_TOKEN": RAY_AUTH_TOKEN}).items():
            environment.setenv(name, value)
        environment.delenv("RAY_ADDRESS", raising=False)
        head, port = _start_ray(Path(folder))
        try:
            yield f"127.0.0.1:{port}"
        finally:
            _disconnect()
            _end(head)


def _start_ray(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start a head and return it with its port.

    Ray gives up a node that has not registered after 30 s, which a loaded machine may need; it is
    then started again.
    """
    deadline = time.monotonic() + RAY_START_TIMEOUT_S
    for attempt in range(RAY_START_ATTEMPTS):
        port, log = free_port(), folder / f"{attempt}.log"
        with log.open("wb") as file:
            command = _ray_command(port, str(folder / str(attempt)))
            head = subprocess.Popen(command, stdout=file, stderr=file, preexec_fn=end_with_parent)
        if _is_up(head, port, log, deadline):
            return head, port
        _end(head)
    pytest.fail(f"the Ray head did not start within {RAY_START_TIMEOUT_S:g} s:\n{log.read_text()}")


def _ray_command(port: int, folder: str) -> list[str]:
    ray = str(Path(sys.executable).with_name("ray"))
    command = [ray, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}"]
    ports = ["dashboard-agent-listen", "dashboard-agent-grpc", "metrics-export"]
    # Ray opens this one, always 10001, where its optional dependency is there, and refuses the
    # option where it is not.
    ports += ["ray-client-server"] if importlib.util.find_spec("grpc") else []
    command += [f"--{name}-port={free_port()}" for name in ports]
    # left to themselves, all clusters of one address give the same ports to their workers.
    command += ["--min-worker-port=0", "--max-worker-port=0"]
    command += ["--num-cpus=8", "--include-dashboard=false", "--disable-usage-stats"]
    return [*command, "--object-store-memory=100000000", f"--temp-dir={folder}"]


def _is_up(head: subprocess.Popen[bytes], port: int, log: Path, deadline: float) -> bool:
    """Wait until the head answers, ends or takes too long."""
    while time.monotonic() < deadline and head.poll() is None:
        if "Ray runtime started" in log.read_text() and _listens(port):
            return True
        time.sleep(0.1)
    return False


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def _disconnect() -> None:
    """A test module may have left this process connected."""
    if "ray" in sys.modules:
        import ray

        ray.shutdown()


def _end(head: subprocess.Popen[bytes]) -> None:
    head.terminate()
    try:
        head.wait(timeout=30.0)
    except subprocess.TimeoutExpired:
        head.kill()
        head.wait()
