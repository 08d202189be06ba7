"""Private temporary folders: removed with the process that made them, or by the next one that looks."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK_NAME = "lock"
_GIVEN_UP_S = 60.0
"""Age from which a folder without a lock file is one whose maker died before it made that."""


@contextmanager
def private_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """Have a new folder inside the block that no other user can enter, and remove it at the end.

    Raises:
        OSError: it cannot be made.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with (folder / f"{_LOCK_NAME}.new").open("x") as lock:
            # The kernel lets go of it when this process dies in any way; children do not inherit it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Whoever sees it under its name finds it locked.
            (folder / f"{_LOCK_NAME}.new").rename(folder / _LOCK_NAME)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned_folders(prefix: str, parent: Path, now: float) -> None:
    """Remove the folders of this user's processes that were killed."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            found = folder.lstat()
            if found.st_uid == os.geteuid() and not folder.is_symlink() and _is_abandoned(folder, found.st_mtime, now):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path, made_at: float, now: float) -> bool:
    try:
        with (folder / _LOCK_NAME).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        return now - made_at > _GIVEN_UP_S
    except BlockingIOError:
        return False
