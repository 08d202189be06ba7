"""Files of a data set, wherever they lie: in a folder, a zip or a tar archive."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO


class DataError(Exception):
    """A data set that cannot be used; the sentence says which, why and what to do."""


def file_names(path: Path) -> list[str]:
    """Names of all files, sorted, relative to the folder or as the archive has them.

    Raises:
        DataError: nothing is there, or something that is neither folder nor archive.
    """
    if path.is_dir():
        return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    if not path.exists():
        raise DataError(
            f"there is no data at {str(path)!r} on this machine; put it there, or name another path in data"
        )
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return sorted(info.filename for info in archive.infolist() if not info.is_dir())
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            return sorted(member.name for member in archive if member.isfile())
    raise DataError(f"{str(path)!r} is neither a folder nor a zip or tar archive; name one of these in data")


def read_files(path: Path, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Name and content of these files, in the order in which they are fastest to read.

    Nothing is unpacked to disk, so names that lead out of an archive lead nowhere.
    """
    wanted = frozenset(names)
    if path.is_dir():
        yield from ((name, (path / name).read_bytes()) for name in names)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from ((name, archive.read(name)) for name in names)
    else:
        with tarfile.open(path) as archive:
            members = (member for member in archive if member.isfile() and member.name in wanted)
            yield from ((member.name, _content(archive.extractfile(member))) for member in members)


def _content(file: IO[bytes] | None) -> bytes:
    return file.read() if file is not None else b""


__all__ = ["DataError", "file_names", "read_files"]
