"""Detects that a SQLite database was removed, replaced or overwritten while the service has it
open.

Without this check a process would write to an unlinked file: accepted jobs would be lost when it
ends.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from threading import Lock
from typing import Any

from accordion_service.errors import DatabaseReplaced

_HEADER = b"SQLite format 3\0"
"""First bytes of every SQLite database."""
_COUNTER_AT, _COUNTER_BYTES = 60, 4
"""Offset of SQLite's `user_version` in the file: a free number, here the count of changes."""
_MAX_COUNT = 2**31 - 1
_LOG_SUFFIX = "-wal"
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY_CODE = 0xFF
"""Mask of the primary code in SQLite's extended error codes."""

Identity = tuple[int, int]
"""Device and inode."""


class FileGuard:
    """Identity of one database file since it was first opened; shared by threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._descriptor: int | None = None
        # Kept open until `close`: closing any descriptor of a file releases all locks of the
        # process on it.
        self._identity: Identity | None = None
        self._log_identity: Identity | None = None
        """Identity of the write-ahead log while any connection is open."""
        self._connections = 0
        self._num_changes = 0
        """Largest count of changes that was read from the file."""
        self._is_older = False
        """Whether the file's count was once below that: pages of two states may be mixed since."""

    def before_connect(self) -> None:
        """Check that a new connection would open the same file as the others.

        Raises:
            DatabaseReplaced: the file is gone or was replaced; SQLite would create an empty one.
        """
        if self._identity is not None:
            self._check_file()

    def after_connect(self) -> None:
        """Record the identity of the file at the first connection."""
        with self._lock:
            if self._identity is None:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                self._identity = _identity_of(self._path)
            self._connections += 1

    def after_close(self) -> None:
        """Reset the identity of the write-ahead log after the last connection: SQLite removes the
        log then.
        """
        with self._lock:
            self._connections = max(0, self._connections - 1)
            if self._connections == 0:
                self._log_identity = None

    def check(self) -> None:
        """Check the files before a transaction begins, and after it is committed.

        Raises:
            DatabaseReplaced: the database or its write-ahead log was removed, replaced or
                overwritten.
        """
        self._check_file()
        found = _identity_of(self._log)
        with self._lock:
            self._log_identity = self._log_identity or found
            is_ours = found == self._log_identity
        if not is_ours:
            raise DatabaseReplaced(
                f"the database's write-ahead log {self._log} was removed or replaced; {_WAY_OUT}"
            )

    def note_count(self) -> bool:
        """Note how many changes the file has, also those of other processes; False if it is no
        database.
        """
        with self._lock:
            if self._descriptor is None:
                return True
            is_database = os.pread(self._descriptor, len(_HEADER), 0) == _HEADER
            if is_database:
                self._compare_count(self._descriptor)
        return is_database

    def close(self) -> None:
        """Close the descriptor."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = self._identity = self._log_identity = None
            self._connections = self._num_changes = 0
            self._is_older = False

    @property
    def _log(self) -> Path:
        return self._path.with_name(self._path.name + _LOG_SUFFIX)

    def _check_file(self) -> None:
        found = _identity_of(self._path)
        if found != self._identity:
            what = "was removed" if found is None else "was replaced by another file"
            raise DatabaseReplaced(
                f"the database {self._path} {what} while the service has it open; {_WAY_OUT}"
            )
        if not self.note_count():
            raise DatabaseReplaced(
                f"the database {self._path} was overwritten and is no longer a database; {_WAY_OUT}"
            )
        if self._is_older:
            raise DatabaseReplaced(
                f"the database {self._path} was overwritten by an older copy of it; {_WAY_OUT}"
            )

    def _compare_count(self, descriptor: int) -> None:
        """Note whether the file lacks changes that it had.

        Changes reach the file when the write-ahead log is written back. A copy that has all changes
        of the file is
        harmless: those that came later are in the log.
        """
        count = int.from_bytes(os.pread(descriptor, _COUNTER_BYTES, _COUNTER_AT))
        self._is_older |= count < self._num_changes
        self._num_changes = max(count, self._num_changes)


_WAY_OUT = (
    "nothing is stored; stop the service, put the database or a backup of it back, and start it"
    " again"
)


def num_changes(connection: Any) -> int:
    """Number of rows that this connection of the driver has changed so far."""
    return int(connection.total_changes)


def count_change(connection: Any) -> None:
    """Raise the count of changes in the database, as part of the transaction; see `FileGuard`."""
    (count,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {min(count + 1, _MAX_COUNT)}")


def is_damage(error: BaseException | None) -> bool:
    """Whether SQLite reported a damaged database."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & _PRIMARY_CODE in _DAMAGED


def _identity_of(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino)
