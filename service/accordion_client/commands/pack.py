"""Packs a folder of user modules as a zip file; the same files always give the same bytes."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accordion_service.errors import SettingsError

_LEFT_OUT = frozenset({"__pycache__", "node_modules", "venv", "env"})
"""Folders to skip, besides those whose name begins with a dot."""
_VENV_MARK = "pyvenv.cfg"
_OLDEST = (1980, 1, 1, 0, 0, 0)
"""Earliest time that a zip file can hold."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MODE = 0o100644


def pack_code(spec: Mapping[str, Any], file: str, code: str = "") -> bytes | None:
    """Read the code of a spec: what `code` names, else the spec's own field, relative to the spec's
    file.

    None if there is no code, or if the spec names an upload by its SHA-256.

    Raises:
        SettingsError: the code is neither a folder nor a readable file.
    """
    named = code or spec.get("code")
    if not named or not isinstance(named, str) or (not code and _SHA256.fullmatch(named)):
        return None
    place = Path(named).expanduser()
    if not code and file != "-":
        place = Path(file).parent / place
    try:
        return pack_folder(place) if place.is_dir() else place.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"code {place} cannot be read ({error.strerror}); name a folder of Python files or a"
            " zip of one"
        ) from error


def pack_folder(folder: Path) -> bytes:
    """Pack a folder's files without hidden files, caches and virtual environments.

    Raises:
        OSError: a file cannot be read.
        SettingsError: the folder holds a pipe or the like, or a link that is broken or leads out.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zipped:
        for path in sorted(
            _list_files(folder), key=lambda path: path.relative_to(folder).as_posix()
        ):
            _check_file(path, folder)
            info = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _OLDEST)
            # The same on every machine; the format stores the packing system and each file's mode.
            info.create_system, info.external_attr = 3, _MODE << 16
            zipped.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _check_file(path: Path, folder: Path) -> None:
    """Check that what is packed is a file of the folder.

    Raises:
        SettingsError: it is something else; reading a pipe would never end.
    """
    name = path.relative_to(folder)
    if path.is_symlink() and not path.exists():
        why = f"{name} links to {path.readlink()}, which does not exist; remove or mend the link"
    elif not path.resolve().is_relative_to(folder.resolve()):
        why = f"{name} links to a file outside of the folder; put a copy there in its place"
    elif not path.is_file():
        why = f"{name} is no regular file; keep it elsewhere"
    else:
        return
    raise SettingsError(f"code {folder}: {why}")


def _list_files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if not path.is_dir():
            yield path
        elif (
            path.name not in _LEFT_OUT
            and not path.is_symlink()
            and not (path / _VENV_MARK).exists()
        ):
            yield from _list_files(path)


__all__ = ["pack_code", "pack_folder"]
