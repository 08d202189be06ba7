"""Storages of checkpoints: a directory that all workers share, or a URL of any fsspec filesystem.

Paths are relative to the storage's root and have at most two parts: `checkpoint/file`. Loads
neither torch nor ray, and fsspec only for URLs.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

_WAYS_OUT = {
    errno.ENOSPC: "free space there, or lower checkpoint.keep",
    errno.EDQUOT: "free space there, raise the quota, or lower checkpoint.keep",
    errno.EFBIG: "raise the limit of a file's size",
    errno.EACCES: "let the workers write there",
    errno.EPERM: "let the workers write there",
    errno.EROFS: "mount it writable",
}


DEAD_UPLOAD_S = 3600.0
"""Age in seconds from which an unfinished upload of this job counts as abandoned."""


MANIFEST = "manifest.json"
"""File of a checkpoint that is written last: without it, the checkpoint is incomplete."""


class MissingCheckpointsError(OSError):
    """The storage has none of the checkpoints that the job has saved, so it is another directory or
    one that is not mounted; an `OSError`, because they may come back.
    """


class Storage(Protocol):
    """Files of checkpoints. All methods may raise `OSError` if the storage cannot be reached or
    written.

    `str()` returns the place as users know it.
    """

    def prepare(self) -> None:
        """Create the root, so that a storage that cannot be written is detected before the first
        step.
        """

    def names(self) -> list[str]:
        """Return the directories in the root; empty if there is no root."""

    def holds(self, path: str) -> bool:
        """Return whether the file exists."""

    def writer(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a file for writing from start to end; it is durable after the block."""

    def put(self, path: str, content: bytes) -> None:
        """Write a small file, atomically if the filesystem supports it."""

    def read(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: the file does not exist.
        """

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its content, if it exists."""


class LocalStorage:
    """A directory; for workers on several machines, one that all of them mount."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def prepare(self) -> None:
        """Create the directory."""
        self._root.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Return the directories in it."""
        return (
            [path.name for path in self._root.iterdir() if path.is_dir()]
            if self._root.is_dir()
            else []
        )

    def holds(self, path: str) -> bool:
        """Return whether the file exists."""
        return (self._root / path).is_file()

    @contextmanager
    def writer(self, path: str) -> Iterator[BinaryIO]:
        """Open a file for writing; it is on the disk after the block."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def put(self, path: str, content: bytes) -> None:
        """Write a temporary file and move it into place, so that a manifest survives a power cut
        whole or not at all.
        """
        draft = f"{path}.part"
        with self.writer(draft) as file:
            file.write(content)
        target = self._root / path
        (self._root / draft).replace(target)
        for directory in (target.parent, self._root):
            _sync_directory(directory)

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return (self._root / path).read_bytes()

    def remove(self, path: str) -> None:
        """Remove a file or a directory."""
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)


class UrlStorage:
    """A directory of an fsspec filesystem. Errors of its library become `OSError`.

    Credentials and addresses come from the workers' environment (fsspec's `FSSPEC_...`, or the
    library's own variables).
    """

    def __init__(self, url: str, name: str) -> None:
        from fsspec.core import url_to_fs

        self._url, self._name = url.rstrip("/"), name
        with self._translate_errors("open"):
            self._filesystem, path = url_to_fs(self._url)
        self._root = f"{path.rstrip('/')}/{name}"

    def __str__(self) -> str:
        return f"{self._url}/{self._name}"

    def prepare(self) -> None:
        """Write a file into the root: object stores have no directories, and only a write shows
        whether it is permitted.
        """
        self.put(".prepared", b"")

    def names(self) -> list[str]:
        """Return the directories in the root."""
        with self._translate_errors("list"):
            # Some filesystems cache listings, and other processes write here too.
            self._filesystem.invalidate_cache()
            try:
                entries = self._filesystem.ls(self._root, detail=True)
            except FileNotFoundError:
                return []
        return [
            entry["name"].rstrip("/").rpartition("/")[2]
            for entry in entries
            if entry["type"] == "directory"
        ]

    def holds(self, path: str) -> bool:
        """Return whether the file exists."""
        with self._translate_errors(path):
            self._filesystem.invalidate_cache()
            return bool(self._filesystem.isfile(self._path(path)))

    @contextmanager
    def writer(self, path: str) -> Iterator[BinaryIO]:
        """Open a file for writing; it is complete after the block."""
        with self._translate_errors(path):
            self._make_directories(path)
            with self._filesystem.open(self._path(path), "wb") as file:
                yield file

    def put(self, path: str, content: bytes) -> None:
        """Write the content in one request, which object stores do atomically."""
        with self._translate_errors(path):
            self._make_directories(path)
            self._filesystem.pipe_file(self._path(path), content)

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with self._translate_errors(path):
            self._filesystem.invalidate_cache()
            content: bytes = self._filesystem.cat_file(self._path(path))
            return content

    def remove(self, path: str) -> None:
        """Remove a file or a directory."""
        with self._translate_errors(path):
            self._filesystem.invalidate_cache()
            # The listing may be outdated: another process may have removed the file.
            with suppress(FileNotFoundError):
                self._filesystem.rm(self._path(path), recursive=True)
        self._abort_uploads(self._path(path))

    def _abort_uploads(self, removed: str) -> None:
        """Free the parts of large files that killed workers left: S3 keeps them, and no listing of
        files shows them.

        Uploads below the removed path are aborted, and uploads of the job that are older than
        `DEAD_UPLOAD_S`.
        """
        call = getattr(self._filesystem, "call_s3", None)
        if call is None:
            return
        bucket, _, folder = self._root.partition("/")
        # The right to list uploads is rarely granted, and a job works without it.
        with suppress(OSError):
            for upload in call("list_multipart_uploads", Bucket=bucket, Prefix=f"{folder}/").get(
                "Uploads", ()
            ):
                age_s = (datetime.now(UTC) - upload["Initiated"]).total_seconds()
                if age_s >= DEAD_UPLOAD_S or f"{bucket}/{upload['Key']}".startswith(f"{removed}/"):
                    call(
                        "abort_multipart_upload",
                        Bucket=bucket,
                        Key=upload["Key"],
                        UploadId=upload["UploadId"],
                    )

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _make_directories(self, path: str) -> None:
        """Create directories below the URL, but never what the URL itself names, such as a bucket
        with a misspelt name.
        """
        inner = self._path(path).rpartition("/")[0]
        for directory in dict.fromkeys((self._root, inner)):
            self._make_directory(directory)

    def _make_directory(self, directory: str) -> None:
        try:
            self._filesystem.mkdir(directory, create_parents=False)
        except Exception:
            # Each library has its own error for a directory that another worker just created.
            if not self._filesystem.isdir(directory):
                raise

    @contextmanager
    def _translate_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{self} ({what}): {type(error).__name__}: {error}") from error


def discard_checkpoint(storage: Storage, name: str) -> None:
    """Remove a checkpoint, its manifest first, so that an interrupted removal leaves an incomplete
    one.

    Raises:
        OSError: the storage cannot be reached.
    """
    storage.remove(f"{name}/{MANIFEST}")
    storage.remove(name)


def open_storage(url: str | None, *, job_id: str, directory: Path) -> Storage:
    """Open the job's own directory, or its part of a URL that several jobs may share.

    Raises:
        OSError: the URL's library refuses it.
    """
    if url is None:
        return LocalStorage(directory)
    place = urlsplit(url)
    if place.scheme in {"file", "local"}:
        return LocalStorage(Path(unquote(place.path)) / job_id)
    return UrlStorage(url, job_id)


def storage_advice(error: OSError) -> str:
    """Return what users can do about a storage that lacks checkpoints or cannot be written."""
    if isinstance(error, MissingCheckpointsError):
        return (
            "mount the storage that has them, or restore them there; a clone of the job trains from"
            " the beginning"
        )
    return _WAYS_OUT.get(error.errno or 0, "see that the workers reach it and may write there")


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


__all__ = [
    "MANIFEST",
    "LocalStorage",
    "MissingCheckpointsError",
    "Storage",
    "UrlStorage",
    "discard_checkpoint",
    "open_storage",
    "storage_advice",
]
