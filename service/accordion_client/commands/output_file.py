"""The file or folder that a command writes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import typer


@contextmanager
def choose_output_file(to: Path | None, default: str, *, force: bool) -> Iterator[Path]:
    """Choose the file of `--to`, or one in the current directory, which is written in the block.

    Raises:
        BadParameter: it is a directory, or exists and `force` is not given.
        SettingsError: it cannot be written.
    """
    from accordion_service.errors import SettingsError

    file = to or Path(default)
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a directory; give a file with --to")
    if file.exists() and not force:
        raise typer.BadParameter(f"{file} exists; give another file with --to, or --force")
    try:
        yield file
    except OSError as error:
        raise SettingsError(
            f"{file} cannot be written ({error.strerror or error}); give another file with --to"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFolder:
    """A folder that a command writes."""

    path: Path
    """Its final place."""
    new: Path
    """Where it is until it is complete."""


@contextmanager
def open_folder(path: Path, *, force: bool) -> Iterator[OutputFolder]:
    """Make a folder that is filled in the block; after an error nothing of it is left.

    Raises:
        BadParameter: there is a file, or a folder and `force` is not given.
        SettingsError: it cannot be written.
    """
    from accordion_service.errors import SettingsError

    if path.exists() and not path.is_dir():
        raise typer.BadParameter(f"{path} is a file; give a folder with --to")
    if path.exists() and not force:
        raise typer.BadParameter(f"{path} exists; give another folder with --to, or --force")
    new = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # An existing folder may be the mount of another file system, so files cannot move into it.
        new = Path(mkdtemp(dir=path if path.is_dir() else path.parent, prefix=".accordion-"))
        yield OutputFolder(path=path, new=new)
        _move_files(new, path)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written ({error.strerror or error}); give another folder with --to"
        ) from error
    finally:
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)


def _move_files(new: Path, path: Path) -> None:
    path.mkdir(exist_ok=True)
    for file in new.iterdir():
        file.replace(path / file.name)
