"""Locations of data as fsspec sees them: their files are listed and fetched."""

from __future__ import annotations

import errno
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote

from accordion_workers.common.errors import DataFetchError, DataNotOnNode

RETRY_S = 10.0
"""Seconds between two attempts to reach a location."""
RETRY_LIMIT_S = 600.0
"""How long a request is repeated after it failed for the first time."""
LOG_S = 30.0
"""Seconds between two log lines about how much was fetched."""
_BATCH = 32
"""Files that are requested at a time; filesystems of object stores fetch them concurrently."""
_VERSION_FIELDS = (
    *("ETag", "etag", "md5Hash", "content_md5", "checksum", "blob_id", "xet_hash", "sha"),
    *("mtime", "modificationTime", "LastModified", "last_modified", "updated", "modified"),
    *("modify", "created"),
)
"""Fields of a file's description, by filesystem, that change with its content; the first counts."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_PERMANENT = (
    *(FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError),
    *(ImportError, ValueError),
)
"""Errors that stay however often a request is repeated."""
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError"})
"""Errors of botocore, which this module does not import."""
_Result = TypeVar("_Result")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a process waits; time as an argument."""

    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file of a location."""

    path: str
    """Path in the filesystem of the location."""
    name: str
    """Path below the location, or the name of the file that the location is."""
    size_bytes: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Files of a location."""

    location: str
    filesystem: Any
    files: tuple[RemoteFile, ...]
    is_file: bool
    """Whether the location is a file, and not a directory."""

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def key(self) -> str:
        """Digest of the location, and of names, sizes and versions of its files."""
        parts = [f"{file.name}\0{file.size_bytes}\0{file.version}" for file in self.files]
        return hashlib.sha256("\n".join([self.location, *parts]).encode()).hexdigest()[:32]


def list_files(name: str, location: str, pace: Pace) -> Listing:
    """List the files of a location.

    Raises:
        DataFetchError: there are none, or they cannot be listed.
    """

    def read() -> Listing:
        from fsspec.core import url_to_fs

        # fsspec takes the rest of a file URL as it is.
        filesystem, root = url_to_fs(unquote(location) if _is_local(location) else location)
        filesystem.invalidate_cache()
        infos = _find_files(filesystem, root)
        root = root.rstrip("/")
        is_file = list(infos) == [root]
        files = [_describe(path, info, root, is_file=is_file) for path, info in infos.items()]
        for file in files:
            if not file.version:
                raise DataFetchError(
                    f"data {name!r}: {location} is on a storage that gives neither a version nor a"
                    f" time of change for {file.path}, so that changed files would go unnoticed;"
                    " copy the files to another storage, or mount them on the nodes and give their"
                    " path"
                )
        return Listing(
            location=location,
            filesystem=filesystem,
            files=tuple(sorted(files, key=lambda file: file.name)),
            is_file=is_file,
        )

    listing = _try_repeatedly(name, location, read, pace=pace)
    if not listing.files:
        kind = DataNotOnNode if _is_local(location) else DataFetchError
        raise kind(
            f"data {name!r}: there are no files at {location}; put them there, or correct the"
            " location and clone the job"
        )
    return listing


def _find_files(filesystem: Any, root: str) -> dict[str, Mapping[str, Any]]:
    """Return what is known of each file below the root, or of the root if it is a file; links count
    as files.
    """
    if _finds_by_walking(filesystem):
        found = _walk(filesystem, root)
    else:
        found = {
            path: info or filesystem.info(path)
            for path, info in filesystem.find(root, detail=True).items()
        }
    # Object stores keep an empty object `train/` for a folder that somebody has created.
    return {
        path: info
        for path, info in found.items()
        if info["type"] != "directory" and not path.endswith("/")
    }


def _finds_by_walking(filesystem: Any) -> bool:
    """Return whether `find` is that of fsspec, which omits folders that it cannot read."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    kind = type(filesystem)
    if isinstance(filesystem, AsyncFileSystem):
        return bool(kind._find is AsyncFileSystem._find)
    return bool(kind.find is AbstractFileSystem.find)


def _walk(filesystem: Any, root: str) -> dict[str, Mapping[str, Any]]:
    info = filesystem.info(root)
    if info["type"] != "directory":
        return {root: info}
    found: dict[str, Mapping[str, Any]] = {}
    folders = [root]
    while folders:
        folder = folders.pop()
        for info in filesystem.ls(folder, detail=True):
            if info["type"] != "directory":
                found[info["name"]] = info
            elif info["name"].rstrip("/") != folder.rstrip("/"):
                folders.append(info["name"])
    return found


def _describe(path: str, info: Mapping[str, Any], root: str, *, is_file: bool) -> RemoteFile:
    name = PurePosixPath(path).name if is_file else path.removeprefix(f"{root}/")
    version = next((info[field] for field in _VERSION_FIELDS if info.get(field)), "")
    return RemoteFile(path=path, name=name, size_bytes=info["size"] or 0, version=str(version))


def fetch_files(name: str, listing: Listing, draft: Path, *, pace: Pace) -> None:
    """Fetch all files into a directory, where they are read-only.

    Raises:
        DataFetchError: they cannot be fetched.
    """
    fetched, logged_s = 0, pace.clock()
    total = f"{format_gigabytes(listing.size_bytes)} in {len(listing.files)} files"
    log.info("fetching data %r from %s: %s", name, listing.location, total)
    for batch in _split_batches(listing.files):
        _fetch_batch(name, listing, batch, draft=draft, pace=pace)
        fetched += sum(file.size_bytes for file in batch)
        if pace.clock() - logged_s >= LOG_S:
            logged_s = pace.clock()
            log.info("data %r: %s of %s", name, format_gigabytes(fetched), total)


def _fetch_batch(
    name: str, listing: Listing, batch: Sequence[RemoteFile], *, draft: Path, pace: Pace
) -> None:
    targets = [_resolve_target(name, draft, file) for file in batch]
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)

    def get() -> None:
        listing.filesystem.get([file.path for file in batch], [str(target) for target in targets])
        for file, target in zip(batch, targets, strict=True):
            if target.is_dir():
                raise DataFetchError(
                    f"data {name!r}: {file.path} is a link to a directory, which is not followed;"
                    " put the files themselves there, and clone the job"
                )
            if not target.is_file() or target.stat().st_size != file.size_bytes:
                raise OSError(f"{file.path} has arrived in part")

    _try_repeatedly(name, listing.location, get, pace=pace)
    for target in targets:
        target.chmod(0o444)


def _resolve_target(name: str, draft: Path, file: RemoteFile) -> Path:
    """Return where a file is fetched to.

    Raises:
        DataFetchError: its name leads out of the directory; object stores allow such names.
    """
    parts = file.name.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise DataFetchError(
            f"data {name!r}: the object name {file.path!r} is not a valid relative path; rename the"
            " object"
        )
    return draft.joinpath(*parts)


def _try_repeatedly(
    name: str, location: str, request: Callable[[], _Result], *, pace: Pace
) -> _Result:
    """Return the result of a request, which is repeated at least once if it fails.

    Raises:
        DataFetchError: repeating does not help, or has not helped for `RETRY_LIMIT_S`.
    """
    failed_s: float | None = None
    while True:
        try:
            return request()
        except DataFetchError:
            raise
        except Exception as error:  # each library has its own errors of the network
            failed_s = pace.clock() if failed_s is None else failed_s
            if _is_permanent(error) or pace.clock() - failed_s >= RETRY_LIMIT_S:
                is_of_node = _is_local(location) or _may_be_node_specific(error)
                kind = DataNotOnNode if is_of_node else DataFetchError
                raise kind(_explain(name, location, error)) from error
            log.warning("data %r: %s; trying again", name, _explain_short(error))
            pace.pause(RETRY_S)


def _is_permanent(error: Exception) -> bool:
    """Return whether the error stays however often the request is repeated."""
    is_known = isinstance(error, _PERMANENT) or type(error).__name__ in _NO_CREDENTIALS
    return is_known or _may_be_node_specific(error)


def _is_local(location: str) -> bool:
    """Return whether a location is on a file system of the node, which another one may lack."""
    return location.startswith(("file:", "local:"))


def _may_be_node_specific(error: Exception) -> bool:
    """Return whether the node has no room, or lacks a package."""
    is_full = isinstance(error, OSError) and error.errno in _NO_ROOM
    return is_full or isinstance(error, ImportError)


def _explain(name: str, location: str, error: Exception) -> str:
    what = f"data {name!r}: {location} cannot be fetched"
    match error:
        case FileNotFoundError():
            return (
                f"data {name!r}: there is nothing at {location}; put the files there, or correct"
                " the location and clone the job"
            )
        case _ if isinstance(error, PermissionError) or type(error).__name__ in _NO_CREDENTIALS:
            return (
                f"data {name!r}: the workers may not read {location} ({_explain_short(error)});"
                " give them credentials, for example in `env` of the spec"
            )
        case ImportError():
            return f"{what}: {error}; install the package on the workers"
        case OSError() if error.errno in _NO_ROOM:
            return f"{what}: the disk of this node is full; free some space there"
    return f"{what}: {_explain_short(error)}"


def _explain_short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _split_batches(files: Sequence[RemoteFile]) -> Iterator[Sequence[RemoteFile]]:
    for first in range(0, len(files), _BATCH):
        yield files[first : first + _BATCH]


def format_gigabytes(size_bytes: int) -> str:
    """Return a size such as `1.5 GB`."""
    return f"{size_bytes / 1e9:.3g} GB"


__all__ = [
    "LOG_S",
    "Listing",
    "Pace",
    "RemoteFile",
    "fetch_files",
    "format_gigabytes",
    "list_files",
]
