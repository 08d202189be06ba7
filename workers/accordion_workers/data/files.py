"""Files of a data set in a folder, a zip or a tar archive."""

from __future__ import annotations

import os
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

_TORN = (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError)
"""Errors raised by reading a damaged archive."""


class DataError(Exception):
    """A data set cannot be used; the message says which, why and what to do."""


def expand_path(path: str) -> Path:
    """Return the path with the values of environment variables, such as `$ACCORDION_DATA_TRAIN`."""
    return Path(os.path.expandvars(path))


def file_names(path: Path) -> list[str]:
    """Return the names of all files, sorted, relative to the folder or as stored in the archive.

    Raises:
        DataError: there is neither a folder nor a readable archive.
    """
    if path.is_dir():
        return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    if not path.exists():
        raise DataError(
            f"there is no data at {str(path)!r} on this machine; put it there, or name another path"
            " in data"
        )
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return sorted(info.filename for info in archive.infolist() if not info.is_dir())
        if tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                return sorted(member.name for member in archive if member.isfile())
    except _TORN as error:
        raise DataError(
            f"{str(path)!r} cannot be read to its end ({error}); fetch it again"
        ) from error
    raise DataError(
        f"{str(path)!r} is neither a folder nor a zip or tar archive; name one of these in data"
    )


def read_files(path: Path, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of these files, in the order that is fastest to read.

    Nothing is unpacked to disk, so names that lead out of an archive are harmless.

    Raises:
        DataError: the archive is damaged, or the disk cannot be read.
    """
    try:
        if path.is_dir():
            yield from ((name, (path / name).read_bytes()) for name in names)
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                yield from ((name, archive.read(name)) for name in names)
        else:
            yield from _from_tar(path, frozenset(names))
    except _TORN as error:
        raise DataError(
            f"{str(path)!r} cannot be read to its end ({error}); fetch it again"
        ) from error


def _from_tar(path: Path, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() and member.name in names else None
            if file is not None:
                yield member.name, file.read()


__all__ = ["DataError", "file_names", "read_files"]
