"""Counts the errors of the database by kind, so that an operator sees what to do about them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from threading import Lock

from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from accordion_service.errors import DatabaseReplaced


class ErrorKind(StrEnum):
    """Kind of a database error.

    - `locked`: another transaction holds what this one needs.
    - `timeout`: a statement, or the wait for a free connection, took too long.
    - `unreachable`: the server or the file cannot be opened, or the connection was lost.
    - `full`: the disk is full.
    - `read_only`: the database, or its disk, may not be written.
    - `damaged`: the file is damaged, or was removed, replaced or overwritten.
    - `no_tables`: the database responds, but lacks tables: it was created anew.
    - `other`: anything else, such as a statement that the database rejects.
    """

    LOCKED = "locked"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    FULL = "full"
    READ_ONLY = "read_only"
    DAMAGED = "damaged"
    NO_TABLES = "no_tables"
    OTHER = "other"


_PRIMARY_CODE = 0xFF
"""Mask of the primary code in SQLite's extended error codes."""
_KIND_BY_SQLITE_CODE: Mapping[int, ErrorKind] = {
    sqlite3.SQLITE_BUSY: ErrorKind.LOCKED,
    sqlite3.SQLITE_LOCKED: ErrorKind.LOCKED,
    sqlite3.SQLITE_PROTOCOL: ErrorKind.LOCKED,
    sqlite3.SQLITE_INTERRUPT: ErrorKind.TIMEOUT,
    sqlite3.SQLITE_CANTOPEN: ErrorKind.UNREACHABLE,
    sqlite3.SQLITE_IOERR: ErrorKind.UNREACHABLE,
    sqlite3.SQLITE_PERM: ErrorKind.UNREACHABLE,
    sqlite3.SQLITE_FULL: ErrorKind.FULL,
    sqlite3.SQLITE_READONLY: ErrorKind.READ_ONLY,
    sqlite3.SQLITE_CORRUPT: ErrorKind.DAMAGED,
    sqlite3.SQLITE_NOTADB: ErrorKind.DAMAGED,
}
_KIND_BY_SQLSTATE: Mapping[str, ErrorKind] = {
    "55P03": ErrorKind.LOCKED,  # lock_not_available: the wait for a lock was too long
    "40P01": ErrorKind.LOCKED,  # deadlock_detected
    "40001": ErrorKind.LOCKED,  # serialization_failure
    "57014": ErrorKind.TIMEOUT,  # query_canceled: the statement took too long
    "25P03": ErrorKind.TIMEOUT,  # idle_in_transaction_session_timeout
    "53300": ErrorKind.UNREACHABLE,  # too_many_connections
    "53100": ErrorKind.FULL,  # disk_full
    "25006": ErrorKind.READ_ONLY,  # read_only_sql_transaction
    "42P01": ErrorKind.NO_TABLES,  # undefined_table
    "XX001": ErrorKind.DAMAGED,  # data_corrupted
    "XX002": ErrorKind.DAMAGED,  # index_corrupted
}
_UNREACHABLE_CLASSES = ("08", "57P")
"""Prefixes of PostgreSQL's codes for connections that failed or that the server ended."""


class ErrorCounts:
    """Errors of one process's database since it was opened, by kind; threads share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_by_kind = dict.fromkeys(ErrorKind, 0)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count a database error that leaves the block."""
        try:
            yield
        except (DBAPIError, PoolTimeout, DatabaseReplaced) as error:
            kind = classify_error(error)
            if kind is not None:
                with self._lock:
                    self._num_by_kind[kind] += 1
            raise

    def count_by_kind(self) -> dict[str, float]:
        """Return the number of errors of every kind."""
        with self._lock:
            return {kind.value: float(count) for kind, count in self._num_by_kind.items()}


def classify_error(error: Exception) -> ErrorKind | None:
    """Return the kind of an error; None if it is none of the database, or only a rejected row,
    which callers expect.
    """
    if isinstance(error, DatabaseReplaced):
        return ErrorKind.DAMAGED
    if isinstance(error, PoolTimeout):
        return ErrorKind.TIMEOUT
    if not isinstance(error, DBAPIError) or isinstance(error, IntegrityError):
        return None
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        # Its code is that of every statement which SQLite rejects.
        lacks_table = str(error.orig).startswith("no such table")
        other = ErrorKind.NO_TABLES if lacks_table else ErrorKind.OTHER
        return _KIND_BY_SQLITE_CODE.get(code & _PRIMARY_CODE, other)
    return _classify_sqlstate(error)


def _classify_sqlstate(error: DBAPIError) -> ErrorKind:
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        # The server did not answer with an error: there is no server, or no connection any more.
        is_away = error.connection_invalidated or isinstance(error, OperationalError)
        return ErrorKind.UNREACHABLE if is_away else ErrorKind.OTHER
    if state.startswith(_UNREACHABLE_CLASSES):
        return ErrorKind.UNREACHABLE
    return _KIND_BY_SQLSTATE.get(state, ErrorKind.OTHER)
