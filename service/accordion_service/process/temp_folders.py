"""Private temporary folders, removed when their process ends or at the next start after it was
killed.
"""

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
"""Age above which a folder without a lock file is abandoned: its process died before creating the
lock.
"""


@contextmanager
def private_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """Create a folder that no other user can enter, and remove it when the block ends.

    Raises:
        OSError: the folder cannot be created.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with (folder / f"{_LOCK_NAME}.new").open("x") as lock:
            # The kernel releases the lock when this process ends, however it ends; children do not
            # inherit it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            # The file gets its final name only after it is locked.
            (folder / f"{_LOCK_NAME}.new").rename(folder / _LOCK_NAME)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned_folders(prefix: str, parent: Path, now: float) -> None:
    """Remove the folders of this user's killed processes."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            found = folder.lstat()
            if (
                found.st_uid == os.geteuid()
                and not folder.is_symlink()
                and _is_abandoned(folder, found.st_mtime, now)
            ):
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
