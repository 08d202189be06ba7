"""A directory of one user on one node, with entries that one process makes and several use; stdlib
only.

    ROOT/KEY/        an entry, renamed into place when it is complete
    ROOT/KEY.new/    the same while a process makes it
    ROOT/KEY.lock    locked while a process makes or takes the entry
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DRAFT_SUFFIX = ".new"
"""Ending of the name of an entry that a process makes."""
POLL_S = 0.1
"""Seconds between two calls of `check` while a process waits for a lock."""


class UnsafeRootError(Exception):
    """Another user could change the entries."""


def open_root(root: Path) -> Path:
    """Create the directory if it is missing.

    Raises:
        UnsafeRootError: another user could write there.
        OSError: it cannot be created.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
    found = root.lstat()
    is_private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022
    if not is_private or found.st_uid != os.getuid():
        raise UnsafeRootError(
            f"{root} is not a directory that only user {os.getuid()} can write to; remove it"
        )
    return root


@contextmanager
def lock_entry(folder: Path, check: Callable[[], None]) -> Iterator[int]:
    """Hold the lock of an entry, and yield its descriptor; `check` is called while another process
    holds it, and what it raises ends the wait.
    """
    lock = os.open(folder.with_name(f"{folder.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                check()
                time.sleep(POLL_S)
        yield lock
    finally:
        os.close(lock)


def keep_in_use(folder: Path) -> None:
    """Keep an entry from being removed until this process ends, and note that it is used now."""
    # Never closed: whoever removes entries skips those that are locked.
    fcntl.flock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH)
    os.utime(folder)


def remove_unless_used(folder: Path) -> bool:
    """Remove an entry, also one that was not completed, unless a process makes, takes or uses it;
    return whether it is gone.
    """

    def give_up() -> None:
        raise BlockingIOError

    try:
        with lock_entry(folder, give_up):
            if folder.is_dir() and not is_unused(folder):
                return False
            for path in (folder, draft_of(folder)):
                shutil.rmtree(path, ignore_errors=True)
            return not folder.exists()
    except OSError:
        return False


def draft_of(folder: Path) -> Path:
    """Return where an entry is made."""
    return folder.with_name(f"{folder.name}{DRAFT_SUFFIX}")


def is_unused(folder: Path) -> bool:
    """Return whether no process keeps the entry in use."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


__all__ = [
    "DRAFT_SUFFIX",
    "POLL_S",
    "UnsafeRootError",
    "draft_of",
    "is_unused",
    "keep_in_use",
    "lock_entry",
    "open_root",
    "remove_unless_used",
]
