"""Database sessions: readers never wait for writers; writers are serialized."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session, sessionmaker

from accordion_service.store.engine.database_errors import ErrorCounts
from accordion_service.store.engine.events import store_events, store_last_events
from accordion_service.store.engine.file_guard import FileGuard, count_change, num_changes
from accordion_service.store.engine.job_labels import store_labels
from accordion_service.store.engine.postgres import (
    SessionLimits,
    create_reader,
    create_writer,
    lift_limits,
)
from accordion_service.store.tables.columns import dump_document, load_document

_BUSY_S = 30.0
"""Longest wait of a writer, in seconds."""
_PRAGMAS = (f"busy_timeout={_BUSY_S * 1000:.0f}", "foreign_keys=ON", "synchronous=NORMAL")
WATCH_S = 1.0
"""Interval, in seconds, between two checks of a database file that this process may not use for a
while.
"""
_BEGIN = "accordion_begin"
_OPTIONS: dict[str, Any] = {
    "json_serializer": dump_document,
    "json_deserializer": load_document,
    # An error's message would show them in the log: output of jobs, specs, hashes of tokens.
    "hide_parameters": True,
}


def hide_password(url: str) -> str:
    """Return the URL of a database for messages, without password, and only with the hosts of its
    query.
    """
    parsed = make_url(url)
    query = {name: value for name, value in parsed.query.items() if name in {"host", "port"}}
    return parsed.set(query=query).render_as_string(hide_password=True)


def lacks_file(url: str) -> bool:
    """Whether a database is a SQLite file that does not exist; opening it would create it."""
    parsed = make_url(url)
    return parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file()


class Database:
    """Database of one process, shared by its threads. `limits` apply to PostgreSQL."""

    def __init__(self, url: str, *, limits: SessionLimits | None = None) -> None:
        self.url = url
        self.errors = ErrorCounts()
        if make_url(url).get_backend_name() == "sqlite":
            path = make_url(url).database
            self._guard = FileGuard(Path(path)) if path and path != ":memory:" else None
            self.engine: Engine = _create_sqlite_engine(url, self._guard)
            # SQLite serializes writers anyway: one connection for all of them leaves the others to
            # readers.
            one = _create_sqlite_engine(
                url, self._guard, pool_size=1, max_overflow=0, pool_timeout=_BUSY_S
            )
            self._writer: Engine = one.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
        else:
            self._guard = None
            self.engine = create_reader(url, limits or SessionLimits(), **_OPTIONS)
            self._writer = create_writer(url, limits or SessionLimits(), **_OPTIONS)
        self._open_writer = sessionmaker(self._writer, expire_on_commit=False)
        event.listen(self._open_writer, "after_flush", store_labels)
        event.listen(self._open_writer, "after_flush", store_events)
        event.listen(self._open_writer, "before_commit", store_last_events)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a session that reads one snapshot and writes nothing; its rows stay usable
        afterwards.
        """
        with (
            self.errors.watch(),
            Session(self.engine, expire_on_commit=False, autoflush=False) as session,
        ):
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a write transaction: committed at the end, rolled back if the body raises."""
        with self.errors.watch():
            with (
                self._open_writer() as session,
                session.begin(),
                self._count_change(session),
            ):
                yield session
            if self._guard is not None:
                self._guard.check()

    @contextmanager
    def _count_change(self, session: Session) -> Iterator[None]:
        """Count a transaction that changes rows, so that an older copy of the file can be told from
        it.
        """
        if self._guard is None:
            yield
            return
        connection = session.connection().connection.driver_connection
        before = num_changes(connection)
        yield
        session.flush()
        if num_changes(connection) != before:
            count_change(connection)

    @contextmanager
    def connect_writer(self) -> Iterator[Connection]:
        """Open a transaction on a plain connection, for migrations."""
        with self._writer.begin() as connection:
            if connection.dialect.name == "postgresql":
                lift_limits(connection)
            yield connection

    def watch_file(self, until: Event) -> None:
        """Check the file every second until the event is set, to detect that an older copy replaced
        it.

        A process that was idle since a backup was made could not tell the backup from the newest
        state.
        """
        while self._guard is not None and not until.wait(WATCH_S):
            self._guard.note_count()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()
        self._writer.dispose()
        if self._guard is not None:
            self._guard.close()


def _create_sqlite_engine(url: str, guard: FileGuard | None, **pool: float) -> Engine:
    connect_args = {"timeout": _BUSY_S, "check_same_thread": False}
    engine = create_engine(url, connect_args=connect_args, **_OPTIONS, **pool)
    event.listen(engine, "connect", _prepare_connection)
    if guard is not None:
        _check_file_at_use(engine, guard)
    event.listen(engine, "begin", _begin_transaction)
    return engine


def _check_file_at_use(engine: Engine, guard: FileGuard) -> None:
    """Check on every connection and transaction that the database file is still the same."""
    event.listen(engine, "do_connect", lambda *_: guard.before_connect())
    event.listen(engine, "connect", lambda *_: guard.after_connect())
    event.listen(engine, "close", lambda *_: guard.after_close())
    event.listen(engine, "begin", lambda _: guard.check())


def _prepare_connection(connection: Any, _record: Any) -> None:
    # The driver would begin transactions itself, too late to take the write lock.
    connection.isolation_level = None
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    _write_ahead(connection)


def _write_ahead(connection: Any) -> None:
    """Switch the file to a write-ahead log. If two processes do so at once, SQLite rejects one
    immediately.
    """
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _begin_transaction(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))
