"""Uploaded user code: checked on upload, stored by content, copied to each job that names it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import IO

from accordion_service.errors import Invalid, NotFound, TooLarge, Unavailable
from accordion_workers.user_code.archive import (
    CodeError,
    Entry,
    check_archive,
    list_entries,
    top_level_modules,
)

OURS = (
    "accordion",
    "accordion_client",
    "accordion_ray",
    "accordion_service",
    "accordion_workers",
)
_HOOKS = ("sitecustomize", "usercustomize")
"""Modules that Python imports by itself at every start."""
_IN_JOB = "code.zip"
_KEPT, _DRAFT = ".zip", ".part"
_OWNER_ONLY = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One upload."""

    sha256: str
    names: tuple[str, ...]
    """Paths of its files, without folders."""
    size_bytes: int
    """Size of the archive."""
    is_new: bool = False
    """Whether this request stored it; other requests found it."""

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self.names)


class Draft:
    """An upload in progress."""

    def __init__(self, path: Path, file: IO[bytes], most_bytes: int) -> None:
        self.path = path
        self.size_bytes = 0
        self._file = file
        self._most_bytes = most_bytes
        self._digest = hashlib.sha256()

    def write(self, piece: bytes) -> None:
        """Add bytes.

        Raises:
            TooLarge: the upload exceeds the limit.
        """
        self.size_bytes += len(piece)
        if self.size_bytes > self._most_bytes:
            raise TooLarge(
                f"the code is larger than {self._most_bytes} bytes; leave data out of it, or raise "
                "ACCORDION_MAX_CODE_BYTES"
            )
        self._digest.update(piece)
        self._file.write(piece)

    def close(self) -> str:
        """Sync the file to disk, and return its SHA-256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._digest.hexdigest()


class CodeStore:
    """A directory of zip files named by SHA-256; a file's mtime is the time of its last request."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._clock = clock

    @contextmanager
    def draft(self, most_bytes: int) -> Iterator[Draft]:
        """Open a new upload; it is removed at the end of the block unless it was kept.

        Raises:
            Unavailable: this process may not write here; so does `keep`.
        """
        with self._translate_permission_errors():
            self._folder.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
            path = self._folder / f".{secrets.token_hex(16)}{_DRAFT}"
            try:
                with path.open("xb") as file:
                    yield Draft(path, file, most_bytes)
            finally:
                path.unlink(missing_ok=True)

    def keep(self, draft: Draft) -> Code:
        """Check an upload and keep it; repeating the same content changes nothing.

        Raises:
            Invalid: the archive is refused; has the reason.
        """
        sha256 = draft.close()
        try:
            with draft.path.open("rb") as file:
                entries = check_archive(file)
            _check_contents([entry.name for entry in entries if not entry.is_folder])
        except CodeError as error:
            raise Invalid(str(error)) from error
        with self._lock():
            self._renew(draft.path)
            is_new = not self._archive_path(sha256).exists()
            draft.path.replace(self._archive_path(sha256))
        return replace(_build_code(sha256, entries, draft.size_bytes), is_new=is_new)

    def get(self, sha256: str) -> Code:
        """Get a kept upload, and keep it for as long as a new one.

        Raises:
            NotFound: there is none.
            Unavailable: it belongs to another user.
        """
        path = self._archive_path(sha256)
        try:
            with self._translate_permission_errors(), self._lock():
                self._renew(path)
            with path.open("rb") as file:
                return _build_code(sha256, list_entries(file), path.stat().st_size)
        except FileNotFoundError:
            raise _unknown_code(sha256) from None

    def read(self, sha256: str) -> bytes:
        """Read an upload.

        Raises:
            NotFound: there is none.
            Unavailable: it belongs to another user.
        """
        with self._open_archive(sha256) as archive:
            return archive.read()

    def hand_over(self, sha256: str, storage: Path) -> Path:
        """Copy an upload into a job's storage if missing, so that the job does not depend on this
        store.

        Raises:
            NotFound: there is none.
            Unavailable: it belongs to another user.
            OSError: the storage cannot be written.
        """
        target = storage / _IN_JOB
        if target.exists():
            return target
        with self._open_archive(sha256) as archive:
            storage.mkdir(parents=True, exist_ok=True)
            part = storage / f".{_IN_JOB}.{secrets.token_hex(8)}"
            try:
                with part.open("xb") as file:
                    shutil.copyfileobj(archive, file)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
        return target

    def prune(self, named: Container[str], *, older_than_s: float) -> int:
        """Remove uploads that are not in `named` and were not requested for that long, and
        abandoned drafts.

        `named` may be slightly outdated: a job that names an upload also requests it.

        Returns:
            Number of removed files.

        Raises:
            OSError: the directory cannot be read or written.
        """
        if not self._folder.exists():
            return 0
        ours = [
            path
            for path in self._folder.iterdir()
            if path.suffix in {_KEPT, _DRAFT} and path.stem not in named
        ]
        return sum(self._remove_old(path, self._clock() - older_than_s) for path in ours)

    def _remove_old(self, path: Path, since: float) -> bool:
        with self._lock():
            if not path.exists() or path.stat().st_mtime > since:
                return False
            path.unlink()
            return True

    def _open_archive(self, sha256: str) -> IO[bytes]:
        try:
            with self._translate_permission_errors():
                return self._archive_path(sha256).open("rb")
        except FileNotFoundError:
            raise _unknown_code(sha256) from None

    @contextmanager
    def _translate_permission_errors(self) -> Iterator[None]:
        """Translate a missing permission of this process to an error with the fix.

        Raises:
            Unavailable: this process lacks the permission.
        """
        try:
            yield
        except PermissionError as error:
            path = error.filename or self._folder
            raise Unavailable(
                f"{path} cannot be used by this process ({error.strerror}); run api and scheduler"
                f" as the user who owns {self._folder}, or change its owner"
            ) from error

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Locks out the other process while an upload's mtime is read and acted on.

        Raises:
            FileNotFoundError: nothing was uploaded yet.
        """
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _renew(self, path: Path) -> None:
        now = self._clock()
        os.utime(path, (now, now))

    def _archive_path(self, sha256: str) -> Path:
        return self._folder / f"{sha256}{_KEPT}"


def _unknown_code(sha256: str) -> NotFound:
    return NotFound(
        f"there is no code {sha256}; upload it with POST /api/v1/code, or submit with --code"
        " DIRECTORY"
    )


def _build_code(sha256: str, entries: Iterable[Entry], size_bytes: int) -> Code:
    names = tuple(entry.name for entry in entries if not entry.is_folder)
    return Code(sha256=sha256, names=names, size_bytes=size_bytes)


def _check_contents(files: list[str]) -> None:
    """Check that no file runs by itself or hides an installed module.

    Raises:
        CodeError: a file does.
    """
    modules = top_level_modules(files)
    if not modules:
        raise CodeError(
            "the archive holds no Python module; put .py files at its top, or folders of them"
        )
    for file in files:
        if file.endswith(".pth") and "/" not in file:
            raise CodeError(
                f"{file!r} could change Python's path at every start; rename it, or put it into a"
                " folder"
            )
    for name, file in modules.items():
        _check_module(name, file)


def _check_module(name: str, file: str) -> None:
    if name in _HOOKS:
        raise CodeError(
            f"{file!r} is a module that Python imports by itself at every start; rename it"
        )
    if name in OURS:
        raise CodeError(
            f"{file!r} has the name of our package {name!r} and would never be imported; rename it"
        )
    if name in sys.stdlib_module_names:
        raise CodeError(
            f"{file!r} has the name of Python's own module {name!r} and would never be imported;"
            " rename it"
        )
    if name in _installed_modules():
        owner = _installed_modules()[name]
        raise CodeError(
            f"{file!r} has the name of module {name!r} of the installed distribution {owner!r} and"
            " would never be imported; rename it"
        )


@cache
def _installed_modules() -> dict[str, str]:
    """Top-level names of all installed modules, each with one distribution that provides it."""
    return {name: owners[0] for name, owners in packages_distributions().items()}


__all__ = ["OURS", "Code", "CodeStore", "Draft"]
