"""A user's own modules in a worker process: unpacked once, at the end of `sys.path`."""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import importlib
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from accordion_workers.common.errors import CodeError, TaskRaised
from accordion_workers.records.contract import Launch
from accordion_workers.user_code.archive import top_level_modules, unpack_archive

_PREFIX = "accordion-code-"

logger = logging.getLogger(__name__)


def install_code(launch: Launch) -> Path | None:
    """Make the job's own modules importable and return their folder; None if it has none.

    Code is installed once per process, however often this is called. The folder belongs to this
    process and is removed with it; if the process is killed, the next worker on this machine
    removes it. It comes last on `sys.path`, so it cannot replace our modules, the standard library
    or an installed package.

    Raises:
        TaskRaised: the archive is missing, differs from the one that the spec names, or is refused.
    """
    _remove_abandoned()
    if launch.code is None or launch.spec.code is None:
        return None
    try:
        return _install_archive(launch.code, launch.spec.code)
    except (CodeError, OSError) as error:
        logger.exception("the job's own code cannot be used")
        raise TaskRaised(None, None, f"{type(error).__name__}: {error}") from error


def append_to_path(folder: Path, files: Sequence[str]) -> None:
    """Append a folder to `sys.path`; `files` are the paths in it.

    Raises:
        CodeError: a module in it could not be imported, because another module of its name comes
            first.
    """
    if str(folder) in sys.path:
        return
    for name, file in top_level_modules(files).items():
        other = (
            importlib.util.find_spec(name)
            if name not in sys.modules
            else sys.modules[name].__spec__
        )
        # Without an origin it is a folder without __init__.py, which any module replaces.
        if other is not None and other.origin is not None:
            raise CodeError(
                f"{file} would never be imported: {name!r} is {other.origin} here; rename it"
            )
    sys.path.append(str(folder))
    importlib.invalidate_caches()


@cache
def _install_archive(archive: str, sha256: str) -> Path:
    folder, lock = _new_folder()
    try:
        append_to_path(folder, _unpack_verified(archive, sha256, folder))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        raise
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _unpack_verified(archive: str, sha256: str, folder: Path) -> list[str]:
    """Unpack the archive, and return the paths of its files."""
    with Path(archive).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            raise CodeError(
                f"the code in {archive} is {found[:12]}..., not {sha256[:12]}...; submit the job"
                " again"
            )
        return [entry.name for entry in unpack_archive(file, folder) if not entry.is_folder]


def _new_folder() -> tuple[Path, int]:
    """Create a folder for this process, and return it with its lock, which is held until it is
    closed or the process ends.
    """
    # Renamed once locked: other workers look for the final name only.
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    lock = lock_folder(made)
    if lock is None:
        raise OSError(
            f"{made} was created just now, and another process has locked it; start the job again"
        )
    return made.rename(made.with_name(made.name.removeprefix("."))), lock


def _remove_abandoned() -> None:
    """Remove the folders of killed processes, as far as permitted."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if (lock := lock_folder(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def lock_folder(folder: Path) -> int | None:
    """Lock a folder until the returned descriptor is closed; None if another process has locked it.

    Raises:
        OSError: the folder is gone, belongs to another user, or is not a folder.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


__all__ = ["append_to_path", "install_code", "lock_folder"]
