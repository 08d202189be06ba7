"""The data of a job on one node: a path is used where it is; a URL is fetched once, by one process,
and then used by all worker processes there.

    CACHE/KEY/files/    the fetched files; KEY stands for URL, names and versions of the files
    CACHE/KEY/note.json which files belong there
    CACHE/KEY.new/      an entry while it is fetched; its note is written first
    STORAGE/data-NAME.key   the job's KEY: all of its nodes and attempts use the same files
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from accordion_workers.common.errors import DataFetchError, DataNotOnNode
from accordion_workers.common.node_cache import (
    DRAFT_SUFFIX,
    UnsafeRootError,
    draft_of,
    is_unused,
    keep_in_use,
    lock_entry,
    open_root,
    remove_unless_used,
)
from accordion_workers.records.contract import DataCache, Launch
from accordion_workers.spec.data import name_variable
from accordion_workers.spec.types import Strict
from accordion_workers.worker.data_source import (
    LOG_S,
    Listing,
    Pace,
    fetch_files,
    format_gigabytes,
    list_files,
)

SPARE_BYTES = 1 << 30
"""Bytes of the disk that are left free."""
_FILES, _NOTE = "files", "note.json"
log = logging.getLogger(__name__)


class _Note(Strict):
    """Content of an entry."""

    location: str
    file: str | None
    """Name of the only file, if the location is a file."""
    sizes: dict[str, int]
    """Bytes of each file by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usage:
    """Space that an entry takes."""

    size_bytes: int
    missing_bytes: int = 0
    """Bytes of it that are still to be fetched."""


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
            path = _provide_url(name, location, launch=launch, pace=pace)
        variables[name_variable(name)] = str(path)
        log.info("data %r of %s is %s", name, location, path)
    return variables


def _provide_url(name: str, location: str, *, launch: Launch, pace: Pace) -> Path:
    """Return where the files of a URL are on this node. The location is not asked if the node has
    the files with which the job began.

    Raises:
        DataFetchError: they cannot be fetched, or have changed since the job began.
        OSError: the job's directory cannot be read or written.
    """
    note, cache, known = Path(launch.storage) / f"data-{name}.key", launch.data_cache, ""
    with suppress(FileNotFoundError):
        known = note.read_text()
    if known and (path := find_fetched(name, known, cache, pace=pace)):
        return path
    listing = list_files(name, location, pace)
    if known in {"", listing.key}:
        path = fetch_once(name, listing, cache, pace=pace)
        known = known or note_key(note, listing.key)
        if known == listing.key:
            return path
    raise DataFetchError(
        f"data {name!r}: the files at {location} have changed since the job began; put new files at"
        " a new location, or clone the job to train with these"
    )


def note_key(note: Path, key: str) -> str:
    """Note the key of the files with which the job began, unless another process was first; return
    the key that is noted.

    Raises:
        OSError: the job's directory cannot be read or written.
    """
    draft = note.with_name(f"{note.name}.{uuid4().hex}")
    try:
        draft.write_text(key)
        with suppress(FileExistsError):
            os.link(draft, note)
    finally:
        draft.unlink(missing_ok=True)
    return note.read_text()


def find_fetched(name: str, key: str, cache: DataCache, *, pace: Pace) -> Path | None:
    """Return where the files of an entry are if this node has all of them, and keep them there
    until this process ends.

    Raises:
        DataFetchError: the cache cannot be read.
    """
    with _translate_errors(name):
        entry = _open_cache(cache) / key
        if not entry.is_dir():
            return None
        with lock_entry(entry, _log_wait(name, pace)):
            note = _read_note(entry)
            if note is None or not _is_complete(entry, note):
                return None
            keep_in_use(entry)
        return _find_files(entry, note)


def fetch_once(name: str, listing: Listing, cache: DataCache, *, pace: Pace) -> Path:
    """Return where the files of a listing are on this node, and keep them there until this process
    ends. The first process fetches them, the others wait.

    Raises:
        DataFetchError: they cannot be fetched, or there is no room for them.
    """
    with _translate_errors(name):
        root = _open_cache(cache)
        entry = root / listing.key
        with lock_entry(entry, _log_wait(name, pace)):
            note = _read_note(entry)
            if note is None or not _is_complete(entry, note):
                _remove_incomplete(name, entry)
                note = _describe(listing)
                _reserve_room(name, listing, root, max_bytes=cache.max_bytes)
                _fetch_entry(name, listing, entry, pace=pace)
            keep_in_use(entry)
        return _find_files(entry, note)


def _fetch_entry(name: str, listing: Listing, entry: Path, *, pace: Pace) -> None:
    draft = draft_of(entry)
    try:
        fetch_files(name, listing, draft / _FILES, pace=pace)
    except (DataFetchError, OSError):
        shutil.rmtree(draft, ignore_errors=True)
        raise
    draft.rename(entry)


def _remove_incomplete(name: str, entry: Path) -> None:
    """Remove what is left of an entry: some systems remove old temporary files.

    Raises:
        DataNotOnNode: processes use it.
    """
    if entry.is_dir():
        if not is_unused(entry):
            raise DataNotOnNode(
                f"data {name!r}: files of {entry} were removed or changed while other workers of"
                " this node use them; end the jobs that use them, and they are fetched again"
            )
        shutil.rmtree(entry)
    shutil.rmtree(draft_of(entry), ignore_errors=True)


def _find_path(name: str, location: str) -> Path:
    """Return a path of this node, which is used as it is.

    Raises:
        DataNotOnNode: there is nothing, or it cannot be read.
    """
    path = Path(location)
    try:
        path.stat()
    except OSError as error:
        raise DataNotOnNode(
            f"data {name!r}: {location} cannot be used on this node ({error.strerror}); mount it"
            " here, or give a URL, whose files each node fetches"
        ) from error
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise DataNotOnNode(
            f"data {name!r}: the workers may not read {location} on this node; change its"
            " permissions"
        )
    return path


def _open_cache(cache: DataCache) -> Path:
    default = Path(tempfile.gettempdir(), f"accordion-data-{os.getuid()}")
    return open_root(Path(cache.folder).absolute() if cache.folder else default)


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Raise errors of the cache's own disk as those of this node.

    Raises:
        DataNotOnNode: the cache cannot be read or written.
    """
    try:
        yield
    except (UnsafeRootError, OSError) as error:
        raise DataNotOnNode(f"data {name!r}: the cache of this node fails: {error}") from error


def _log_wait(name: str, pace: Pace) -> Callable[[], None]:
    """Return a function that logs every `LOG_S` that this process waits for another one."""
    logged_s = pace.clock()

    def log_wait() -> None:
        nonlocal logged_s
        if pace.clock() - logged_s >= LOG_S:
            logged_s = pace.clock()
            log.info("data %r: waiting for another worker of this node, which fetches them", name)

    return log_wait


def _describe(listing: Listing) -> _Note:
    return _Note(
        location=listing.location,
        file=listing.files[0].name if listing.is_file else None,
        sizes={file.name: file.size_bytes for file in listing.files},
    )


def _read_note(folder: Path) -> _Note | None:
    with suppress(OSError, ValueError):
        return _Note.model_validate_json((folder / _NOTE).read_bytes())
    return None


def _find_files(entry: Path, note: _Note) -> Path:
    return entry / _FILES / note.file if note.file else entry / _FILES


def _is_complete(entry: Path, note: _Note) -> bool:
    files = entry / _FILES
    return all(_has_size(files / name, size) for name, size in note.sizes.items())


def _has_size(path: Path, size_bytes: int) -> bool:
    try:
        return path.stat().st_size == size_bytes
    except OSError:
        return False


def _reserve_room(name: str, listing: Listing, root: Path, *, max_bytes: int) -> None:
    """Make room for the files, and note how much they take; unused entries are evicted, least
    recently used first.

    Raises:
        DataFetchError: they are larger than the limit of the cache.
        DataNotOnNode: there is no room.
    """
    needed = listing.size_bytes
    what = f"data {name!r}: {listing.location} has {format_gigabytes(needed)}"
    if max_bytes and needed > max_bytes:
        raise DataFetchError(
            f"{what}, and a node keeps at most {format_gigabytes(max_bytes)}; raise"
            " ACCORDION_DATA_CACHE_BYTES, or mount the data on the nodes and give their path"
        )
    with lock_entry(root / "all", lambda: None):
        entries = _measure_entries(root, without=listing.key)
        for key in _oldest_first(root, entries):
            if _has_room(root, needed, entries, max_bytes=max_bytes):
                break
            if remove_unless_used(root / key):
                log.info("removed %s, fetched earlier, from the cache of this node", key)
                del entries[key]
        if not _has_room(root, needed, entries, max_bytes=max_bytes):
            free, used = _count_free(root, entries), _count_used(entries)
            limit = f", which may hold {format_gigabytes(max_bytes)}" if max_bytes else ""
            raise DataNotOnNode(
                f"{what}, and this node has no room: {format_gigabytes(free)} of the disk of {root}"
                f" are free, and jobs use {format_gigabytes(used)} of the cache{limit}; free some"
                " space there, or set ACCORDION_DATA_CACHE to a directory on a larger disk"
            )
        draft = draft_of(root / listing.key)
        draft.mkdir()
        (draft / _NOTE).write_text(_describe(listing).model_dump_json())


def _measure_entries(root: Path, *, without: str) -> dict[str, _Usage]:
    """Return the space of the entries by key, also of those that are being fetched."""
    folders = (path.name for path in root.iterdir() if path.is_dir())
    keys = {folder.removesuffix(DRAFT_SUFFIX) for folder in folders}
    return {key: _measure_entry(root / key) for key in keys - {without}}


def _measure_entry(entry: Path) -> _Usage:
    folder = entry if entry.is_dir() else draft_of(entry)
    note = _read_note(folder)
    noted = sum(note.sizes.values()) if note is not None else 0
    if folder == entry and note is not None:
        return _Usage(size_bytes=noted)
    arrived = _sum_sizes(folder if note is None else folder / _FILES)
    return _Usage(size_bytes=max(noted, arrived), missing_bytes=max(noted - arrived, 0))


def _sum_sizes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total


def _oldest_first(root: Path, keys: Mapping[str, _Usage]) -> list[str]:
    """Return the keys by the time of their last use; entries that were not completed come first."""

    def used_at(key: str) -> float:
        with suppress(OSError):
            return (root / key).stat().st_mtime
        return 0.0

    return sorted(keys, key=used_at)


def _has_room(root: Path, needed: int, entries: Mapping[str, _Usage], *, max_bytes: int) -> bool:
    if max_bytes and _count_used(entries) + needed > max_bytes:
        return False
    return _count_free(root, entries) >= needed + SPARE_BYTES


def _count_used(entries: Mapping[str, _Usage]) -> int:
    return sum(entry.size_bytes for entry in entries.values())


def _count_free(root: Path, entries: Mapping[str, _Usage]) -> int:
    """Return the free bytes of the disk that no fetch in progress needs."""
    missing = sum(entry.missing_bytes for entry in entries.values())
    return max(shutil.disk_usage(root).free - missing, 0)


__all__ = ["fetch_once", "find_fetched", "note_key", "provide_data"]
