"""Tables as CSV or Parquet files."""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from accordion_client.commands.job_rows import Cell, RowTable

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a text that spreadsheets take for a formula."""


def choose_writer(kind: str) -> Callable[[RowTable, Path], None]:
    """Return what writes a table to a file.

    Raises:
        ModuleNotFoundError: Parquet needs a package that is not installed.
    """
    if kind == "csv":
        return _write_csv
    import pyarrow.parquet  # before anything is requested

    types: dict[type | None, Any] = {
        bool: pyarrow.bool_(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        datetime: pyarrow.timestamp("us", tz="UTC"),
        str: pyarrow.string(),
    }

    def write_parquet(table: RowTable, file: Path) -> None:
        # A column without values would have no type, and not fit to the same column of another job.
        columns = {
            name: pyarrow.array(values, type=types.get(table.types.get(name)))
            for name, values in table.columns.items()
        }
        pyarrow.parquet.write_table(pyarrow.table(columns), file)

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
    if isinstance(value, str) and value.startswith(_FORMULAS):
        return f"'{value}"  # or a spreadsheet would compute what somebody has written
    return value.isoformat() if isinstance(value, datetime) else value
