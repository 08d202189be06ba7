"""Tables as CSV or Parquet files in a folder that appears when all of them are complete."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp

import typer

from accordion_client.commands.job_rows import Cell, RowTable


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
        new = Path(mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
        yield OutputFolder(path=path, new=new)
        _move_files(new, path)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written ({error.strerror}); give another folder with --to"
        ) from error
    finally:
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)


def _move_files(new: Path, path: Path) -> None:
    path.mkdir(exist_ok=True)
    for file in new.iterdir():
        file.replace(path / file.name)


def choose_writer(kind: str) -> Callable[[RowTable, Path], None]:
    """Return what writes a table to a file.

    Raises:
        ModuleNotFoundError: Parquet needs a package that is not installed.
    """
    if kind == "csv":
        return _write_csv
    import pyarrow.parquet  # before anything is requested

    def write_parquet(table: RowTable, file: Path) -> None:
        pyarrow.parquet.write_table(pyarrow.table(dict(table.columns)), file)

    return write_parquet


def _write_csv(table: RowTable, file: Path) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(table.columns)
        for row in zip(*table.columns.values(), strict=True):
            writer.writerow(map(_format_cell, row))


def _format_cell(value: Cell) -> Cell:
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, datetime) else value
