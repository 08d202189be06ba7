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
    file = to or Path(default)
    with _translate_errors(file, "file"):
        if file.is_dir():
            raise typer.BadParameter(f"{file} is a directory; give a file with --to")
        if file.exists() and not force:
            raise typer.BadParameter(f"{file} exists; give another file with --to, or --force")
        yield file


@contextmanager
def _translate_errors(path: Path, kind: str) -> Iterator[None]:
    from accordion_service.errors import SettingsError

    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written ({error.strerror or error}); give another {kind} with --to"
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
    with _translate_errors(path, "folder"):
        if path.exists() and not path.is_dir():
            raise typer.BadParameter(f"{path} is a file; give a folder with --to")
        if path.exists() and not force:
            raise typer.BadParameter(f"{path} exists; give another folder with --to, or --force")
        path.parent.mkdir(parents=True, exist_ok=True)
        # An existing folder may be the mount of another file system, so files cannot move into it.
        new = Path(mkdtemp(dir=path if path.is_dir() else path.parent, prefix=".accordion-"))
        try:
            yield OutputFolder(path=path, new=new)
            _move_files(new, path)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _move_files(new: Path, path: Path) -> None:
    path.mkdir(exist_ok=True)
    for file in new.iterdir():
        file.replace(path / file.name)
