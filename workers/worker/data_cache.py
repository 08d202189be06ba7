"""The data of a job on one node: a path is used where it is; a URL is fetched once, by one process,
and then used by all worker processes there.

    CACHE/KEY/        the fetched files; KEY stands for the URL, and names and versions of its files
    CACHE/KEY.json    what belongs there, written before it is fetched
    STORAGE/data-NAME.key   the job's KEY: all of its nodes and attempts use the same files
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from workers.contract import DataCache, Launch
from workers.data_spec import name_variable
from workers.errors import DataFetchError
from workers.node_cache import (
    UnsafeRootError,
    draft_of,
    keep_in_use,
    lock_entry,
    open_root,
    remove_unless_used,
)
from workers.worker.data_source import (
    Listing,
    Pace,
    fetch_files,
    format_gigabytes,
    list_files,
)

STALLED_S = 6 * 3600.0
"""How long a process waits for another one that completes no file meanwhile."""
SPARE_BYTES = 1 << 30
"""Bytes of the disk that are left free."""
log = logging.getLogger(__name__)


def provide_data(launch: Launch, pace: Pace | None = None) -> dict[str, str]:
    """Return the variables with the paths of the job's data, once these are on this node.

    Raises:
        DataFetchError: data cannot be provided on this node; the message says why.
        OSError: the job's directory cannot be read or written.
    """
    pace, variables = pace or Pace(), {}
    for name, location in launch.spec.data.items():
        if location.startswith("/"):
            path = _find_path(name, location)
        else:
            listing = list_files(name, location, pace)
            check_unchanged(Path(launch.storage), name, listing)
            path = fetch(name, listing, launch.data_cache, pace=pace)
        variables[name_variable(name)] = str(path)
        log.info("data %r of %s is %s", name, location, path)
    return variables


def check_unchanged(storage: Path, name: str, listing: Listing) -> None:
    """Check that the files are those with which the job began; the first process notes them.

    Raises:
        DataFetchError: they are not.
        OSError: the job's directory cannot be read or written.
    """
    note = storage / f"data-{name}.key"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with suppress(FileExistsError), os.fdopen(os.open(note, flags, 0o644), "w") as file:
        file.write(listing.key)
    # Another process may have created the file and not yet written it.
    for _ in range(50):
        if known := note.read_text():
            break
        time.sleep(0.1)
    if known != listing.key:
        raise DataFetchError(
            f"data {name!r}: the files at {listing.location} have changed since the job began; put"
            " new files at a new location, or clone the job to train with these"
        )


def fetch(name: str, listing: Listing, cache: DataCache, *, pace: Pace) -> Path:
    """Return where the files of a listing are on this node, and keep them there until this process
    ends. The first process fetches them, the others wait.

    Raises:
        DataFetchError: they cannot be fetched, or there is no room for them.
    """
    root = _open_cache(name, cache)
    folder = root / listing.key
    with lock_entry(folder, _watch_progress(name, folder, pace)):
        if not _is_complete(folder, listing):
            shutil.rmtree(draft_of(folder), ignore_errors=True)
            _reserve_room(name, listing, root, max_bytes=cache.max_bytes)
            try:
                fetch_files(name, listing, draft_of(folder), pace=pace)
            except DataFetchError:
                shutil.rmtree(draft_of(folder), ignore_errors=True)
                _note_of(folder).unlink(missing_ok=True)
                raise
            shutil.rmtree(folder, ignore_errors=True)  # an incomplete one
            draft_of(folder).rename(folder)
        keep_in_use(folder)
    return folder / listing.files[0].name if listing.is_file else folder


def _find_path(name: str, location: str) -> Path:
    """Return a path of this node, which is used as it is.

    Raises:
        DataFetchError: there is nothing, or it cannot be read.
    """
    path = Path(location)
    try:
        path.stat()
    except OSError as error:
        raise DataFetchError(
            f"data {name!r}: {location} cannot be used on this node ({error.strerror}); mount it"
            " here, or give a URL, whose files each node fetches"
        ) from error
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise DataFetchError(
            f"data {name!r}: the workers may not read {location} on this node; change its"
            " permissions"
        )
    return path


def _open_cache(name: str, cache: DataCache) -> Path:
    default = Path(tempfile.gettempdir(), f"accordion-data-{os.getuid()}")
    try:
        return open_root(Path(cache.folder) if cache.folder else default)
    except (UnsafeRootError, OSError) as error:
        raise DataFetchError(f"data {name!r}: the cache of this node fails: {error}") from error


def _watch_progress(name: str, folder: Path, pace: Pace) -> Callable[[], None]:
    """Return a check that fails once the process that fetches has stalled."""
    newest, changed_s = 0.0, pace.clock()

    def check() -> None:
        nonlocal newest, changed_s
        with suppress(OSError):
            found = draft_of(folder).stat().st_mtime
            if found != newest:
                newest, changed_s = found, pace.clock()
        if pace.clock() - changed_s >= STALLED_S:
            raise DataFetchError(
                f"data {name!r}: another worker of this node has completed no file for"
                f" {STALLED_S / 3600:g} hours; see the log of the job that it belongs to"
            )

    return check


def _note_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _is_complete(folder: Path, listing: Listing) -> bool:
    """Return whether all files are there: some systems remove old temporary files."""
    return folder.is_dir() and all(
        _has_size(folder / file.name, file.size_bytes) for file in listing.files
    )


def _has_size(path: Path, size_bytes: int) -> bool:
    try:
        return path.stat().st_size == size_bytes
    except OSError:
        return False


def _reserve_room(name: str, listing: Listing, root: Path, *, max_bytes: int) -> None:
    """Make room for the files, and note how much they take; entries that no process uses are
    removed, those first that were used least recently.

    Raises:
        DataFetchError: there is no room.
    """
    needed = listing.size_bytes
    what = f"data {name!r}: {listing.location} has {format_gigabytes(needed)}"
    if max_bytes and needed > max_bytes:
        raise DataFetchError(
            f"{what}, and a node keeps at most {format_gigabytes(max_bytes)}; raise"
            " ACCORDION_DATA_CACHE_BYTES, or mount the data on the nodes and give their path"
        )
    with lock_entry(root / "all", lambda: None):
        sizes = _read_sizes(root, without=listing.key)
        for key in _oldest_first(root, sizes):
            if _has_room(root, needed, used=sum(sizes.values()), max_bytes=max_bytes):
                break
            if remove_unless_used(root / key):
                log.info("removed %s, fetched earlier, from the cache of this node", key)
                _note_of(root / key).unlink(missing_ok=True)
                del sizes[key]
        if not _has_room(root, needed, used=sum(sizes.values()), max_bytes=max_bytes):
            free, used = shutil.disk_usage(root).free, sum(sizes.values())
            limit = f", which may hold {format_gigabytes(max_bytes)}" if max_bytes else ""
            raise DataFetchError(
                f"{what}, and this node has no room: {format_gigabytes(free)} of the disk of {root}"
                f" are free, and jobs use {format_gigabytes(used)} of the cache{limit}; free some"
                " space there, or set ACCORDION_DATA_CACHE to a directory on a larger disk"
            )
        note = {"location": listing.location, "bytes": needed}
        _note_of(root / listing.key).write_text(json.dumps(note))


def _read_sizes(root: Path, *, without: str) -> dict[str, int]:
    """Return the sizes of the entries, also of those that are being fetched."""
    sizes = {}
    for note in root.glob("*.json"):
        if note.stem != without:
            with suppress(OSError, ValueError, KeyError, TypeError):
                sizes[note.stem] = int(json.loads(note.read_text())["bytes"])
    return sizes


def _oldest_first(root: Path, keys: Mapping[str, int]) -> list[str]:
    def used_at(key: str) -> float:
        with suppress(OSError):
            return (root / key).stat().st_mtime
        return 0.0

    return sorted(keys, key=used_at)


def _has_room(root: Path, needed: int, *, used: int, max_bytes: int) -> bool:
    if max_bytes and used + needed > max_bytes:
        return False
    return shutil.disk_usage(root).free >= needed + SPARE_BYTES


__all__ = ["check_unchanged", "fetch", "provide_data"]
