"""Notices that a SQLite database was removed, replaced or overwritten while the service has it open.

Without it a process goes on in the file that is in no directory any more: jobs are accepted, and gone with the process.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from threading import Lock

from service.errors import Unavailable

_HEADER = b"SQLite format 3\0"
"""How every SQLite database begins."""
_LOG_SUFFIX = "-wal"
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY_CODE = 0xFF
"""The part of SQLite's error codes that names the kind."""

Identity = tuple[int, int]
"""Device and inode."""


class FileGuard:
    """The file of one database, as it was when it was opened first; threads share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._descriptor: int | None = None
        # Open until `close`: closing any descriptor of a file ends all locks that the process holds on it.
        self._identity: Identity | None = None
        self._log_identity: Identity | None = None
        """Of the log of changes, while any connection is open."""
        self._connections = 0

    def before_connect(self) -> None:
        """Let a new connection open the file, which must be the one that the others have open.

        Raises:
            Unavailable: it is gone or another one; SQLite would make an empty one in its place.
        """
        if self._identity is not None:
            self._check_file()

    def after_connect(self) -> None:
        """Keep which files they are, at the first connection."""
        with self._lock:
            if self._identity is None:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                self._identity = _identity_of(self._path)
            self._connections += 1

    def after_close(self) -> None:
        """Forget the log of changes with the last connection: SQLite removes it then."""
        with self._lock:
            self._connections = max(0, self._connections - 1)
            if self._connections == 0:
                self._log_identity = None

    def check(self) -> None:
        """Let a transaction begin, or tell of its success.

        Raises:
            Unavailable: the file or its log of changes is gone, another one, or no database any more.
        """
        self._check_file()
        found = _identity_of(self._log)
        with self._lock:
            self._log_identity = self._log_identity or found
            is_ours = found == self._log_identity
        if not is_ours:
            raise Unavailable(f"the database's log of changes {self._log} was removed or replaced; {_WAY_OUT}")

    def close(self) -> None:
        """Give the descriptor back."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = self._identity = self._log_identity = None
            self._connections = 0

    @property
    def _log(self) -> Path:
        return self._path.with_name(self._path.name + _LOG_SUFFIX)

    def _check_file(self) -> None:
        found = _identity_of(self._path)
        if found != self._identity:
            what = "was removed" if found is None else "was replaced by another file"
            raise Unavailable(f"the database {self._path} {what} while the service has it open; {_WAY_OUT}")
        if self._descriptor is not None and os.pread(self._descriptor, len(_HEADER), 0) != _HEADER:
            raise Unavailable(f"the database {self._path} was overwritten and is no database any more; {_WAY_OUT}")


_WAY_OUT = "nothing is stored; stop the service, put the database or a backup of it back, and start it again"


def is_damage(error: BaseException | None) -> bool:
    """Whether SQLite found that a database is damaged."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & _PRIMARY_CODE in _DAMAGED


def _identity_of(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino)
