"""A PostgreSQL server of the test session: on a free port, as an ordinary user, its data in a
temporary folder.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from accordion_service.store.migrations import upgrade

START_TIMEOUT_S = 120.0
_PR_SET_PDEATHSIG = 1
_USER = "accordion"
_TEMPLATE = "migrated"
_SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "jit": "off",
    "max_connections": "200",
    "max_wal_senders": "0",
    "timezone": "UTC",
    "wal_level": "minimal",
}
"""What a crash of the machine would lose, the tests do not need; a crash of the server loses
nothing.
"""
REPLICATED = _SETTINGS | {"max_wal_senders": "4", "wal_level": "replica"}
"""Settings of a server that has a standby."""
_KEEP_FIRST_ROWS = """
CREATE SCHEMA first_rows;
DO $$
DECLARE
    found record;
    is_filled boolean;
BEGIN
    FOR found IN SELECT relname FROM pg_class
                 WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM public.%I)', found.relname) INTO is_filled;
        IF is_filled THEN
            EXECUTE format('CREATE TABLE first_rows.%I AS TABLE public.%I',
                           found.relname, found.relname);
        END IF;
    END LOOP;
END $$
"""
"""Copies of the tables in which the migrations stored something."""


@dataclass
class Postgres:
    """A running server."""

    host: str
    port: int
    password: str
    process: subprocess.Popen[bytes]
    start: Callable[[], subprocess.Popen[bytes]]
    """Starts the server on its data."""
    log: Path
    numbers: Iterator[int] = field(default_factory=count)
    _admin: psycopg.Connection[Any] | None = None

    def url(self, database: str) -> str:
        """SQLAlchemy's URL of one database."""
        return f"postgresql+psycopg://{_USER}:{self.password}@{self.host}:{self.port}/{database}"

    def create_database(self, *, migrated: bool = True) -> str:
        """URL of a new database, with all tables or with none."""
        if migrated and not self._has(_TEMPLATE):
            self.execute(f"CREATE DATABASE {_TEMPLATE}")
            upgrade(self.url(_TEMPLATE))
            with self.connect(self.url(_TEMPLATE)) as connection:
                connection.execute(_KEEP_FIRST_ROWS)
        name = self._new_name()
        self.execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE if migrated else 'template0'}")
        return self.url(name)

    def copy_database(self, url: str) -> str:
        """URL of a new database with the rows of another one, which nobody uses."""
        name = self._new_name()
        self.execute(f"CREATE DATABASE {name} TEMPLATE {_name_of(url)}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database, whoever is still connected to it."""
        self.execute(f"DROP DATABASE {_name_of(url)} WITH (FORCE)")

    def shut_database(self, url: str) -> None:
        """Refuse new sessions of a database."""
        self.execute(f"ALTER DATABASE {_name_of(url)} ALLOW_CONNECTIONS false")

    def reopen_database(self, url: str) -> str:
        """URL of a database that was shut and has no sessions left, under a new name."""
        name = self._new_name()
        self.execute(f"ALTER DATABASE {_name_of(url)} RENAME TO {name}")
        self.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        return self.url(name)

    def end_sessions(self, url: str) -> int:
        """Number of sessions of a database that were told to end; 0 if there are none left."""
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        return len(self.execute(query, _name_of(url)))

    def connect(self, url: str) -> psycopg.Connection[Any]:
        """Open a session that begins no transactions by itself."""
        return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)

    def kill(self) -> None:
        """Kill all processes of the server."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(timeout=30)

    def crash(self) -> None:
        """Kill all processes of the server, and start it again: it recovers from its log."""
        self.kill()
        self.process = self.start()
        _wait_for_answer(self, self.log)

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement beside all transactions; its rows."""
        if self._admin is None or self._admin.closed:
            self._admin = self.connect(self.url("postgres"))
        cursor = self._admin.execute(statement, values or None)
        return list(cursor) if cursor.description else []

    def close(self) -> None:
        """Close the session that runs statements."""
        if self._admin is not None:
            self._admin.close()

    def _new_name(self) -> str:
        return f"test_{next(self.numbers)}"

    def _has(self, database: str) -> bool:
        return bool(self.execute("SELECT 1 FROM pg_database WHERE datname = %s", database))


def _name_of(url: str) -> str:
    return url.rpartition("/")[2]


def find_program(name: str) -> Path | None:
    """Path of one of the server's programs; Debian keeps them outside of PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=_version)
    found = installed[-1] if installed else shutil.which(name)
    return Path(found) if found else None


def _version(program: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in program.parts[-3].split(".") if part.isdigit())


@contextmanager
def run_postgres(
    initdb: Path, pick_port: Callable[[], int], settings: Mapping[str, str] = _SETTINGS
) -> Iterator[Postgres]:
    """Start a server, and stop it at the end of the block."""
    user, password = _ordinary_user(), secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, secret = Path(name), Path(name, "password")
        secret.write_text(password)
        for path in (folder, secret):
            shutil.chown(path, user)
        options = [
            "--auth=scram-sha-256",
            f"--username={_USER}",
            f"--pwfile={secret}",
            "--encoding=UTF8",
            "--no-sync",
        ]
        _run([initdb, f"--pgdata={folder}/data", "--locale=C.UTF-8", *options], user, folder)
        cluster = _Cluster(folder=folder, programs=initdb.parent, user=user, settings=settings)
        with _serve(cluster, "data", pick_port(), password) as server:
            yield server


@contextmanager
def run_standby(
    primary: Postgres, initdb: Path, pick_port: Callable[[], int]
) -> Iterator[Postgres]:
    """Start a copy of a server that receives all of its changes; from then on, the server confirms
    nothing that the copy does not have.
    """
    user = _ordinary_user()
    cluster = _Cluster(
        folder=primary.log.parent, programs=initdb.parent, user=user, settings=REPLICATED
    )
    command = [cluster.programs / "pg_basebackup", "-D", cluster.folder / "standby", "-R"]
    command += ["-h", primary.host, "-p", str(primary.port), "-U", _USER, "-c", "fast", "--no-sync"]
    _run(command, user, cluster.folder, PGPASSWORD=primary.password)
    with _serve(cluster, "standby", pick_port(), primary.password) as standby:
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        while not primary.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"):
            time.sleep(0.05)  # pytest's time limit ends it
        yield standby


def promote(standby: Postgres, initdb: Path) -> None:
    """Let a copy accept writes."""
    folder = standby.log.parent
    command = [initdb.with_name("pg_ctl"), "promote", "-D", folder / "standby", "--wait"]
    _run(command, _ordinary_user(), folder)


@dataclass(frozen=True, kw_only=True)
class _Cluster:
    """What servers on copies of the same data share."""

    folder: Path
    programs: Path
    user: str
    settings: Mapping[str, str]


@contextmanager
def _serve(cluster: _Cluster, data: str, port: int, password: str) -> Iterator[Postgres]:
    """Start a server on a folder of data, and stop it at the end of the block."""
    path = cluster.folder / f"{data}.log"
    with path.open("wb") as log:
        command: list[Any] = [cluster.programs / "postgres", "-D", cluster.folder / data]
        command += ["-p", str(port), "-k", cluster.folder]
        for setting in cluster.settings.items():
            command += ["-c", "=".join(setting)]

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,
                **_as_user(cluster.user),
            )

        server = Postgres(
            host="127.0.0.1", port=port, password=password, process=start(), start=start, log=path
        )
        try:
            _wait_for_answer(server, server.log)
            yield server
        finally:
            server.close()
            server.kill()


def _ordinary_user() -> str:
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


def _as_user(user: str) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _run(command: list[Any], user: str, folder: Path, **environment: str) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, **environment},
        **_as_user(user),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _end_with_parent() -> None:
    """A killed test session leaves no server behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def _wait_for_answer(server: Postgres, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while server.process.poll() is None and time.monotonic() < deadline:
        try:
            server.execute("SELECT 1")
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(
        f"PostgreSQL did not start within {START_TIMEOUT_S:g} s:\n{log.read_text()}"
    )
