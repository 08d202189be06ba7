"""Sessions on the database: readers never wait for writers, writers take turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

_PRAGMAS = ("journal_mode=WAL", "foreign_keys=ON", "synchronous=NORMAL", "busy_timeout=30000")
_BEGIN = "accordion_begin"


class Database:
    """The database of one process; threads share it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = (
            _sqlite(url) if make_url(url).get_backend_name() == "sqlite" else create_engine(url, pool_pre_ping=True)
        )
        self._writer = self.engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one state of the database and writes nothing; its rows stay usable afterwards."""
        with Session(self.engine, expire_on_commit=False, autoflush=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One transaction, begun as a writer: committed at the end, rolled back when the body raises."""
        with Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def connect_writer(self) -> Iterator[Connection]:
        """One transaction on a plain connection, for migrations."""
        with self._writer.begin() as connection:
            yield connection

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()


def _sqlite(url: str) -> Engine:
    engine = create_engine(url, connect_args={"timeout": 30, "check_same_thread": False})
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: Any, _record: Any) -> None:
    # The driver would begin transactions on its own, too late to take the writer's turn.
    connection.isolation_level = None
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))
