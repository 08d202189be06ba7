"""Summary of a job's older generations, beside its journal, so that a worker group need not read
all records of a long history.

    storage/records/summary.jsonl     milestones of one generation per line, from the first on

Only generations that are over are in it. All others, and those after a torn line, are read from
their records.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from accordion_workers.hub.journal import newest_generation, read_records
from accordion_workers.records.contract import Cursor
from accordion_workers.records.milestones import Milestones, find_milestones


def read_milestones(storage: Path) -> list[Milestones]:
    """Return the milestones of all generations of the job, in order."""
    known = _read_summary(storage)
    return [*known, *_read_newer(storage, known)]


def extend_summary(storage: Path) -> None:
    """Add the generations that are over: all but the newest, which its claimer writes now.

    Raises:
        OSError: the storage cannot be read or written.
    """
    over = _read_newer(storage, _read_summary(storage))[:-1]
    if over:
        with _summary_file(storage).open("ab") as file:
            # The leading newline ends a line that a full disk tore.
            file.writelines(b"\n" + row.model_dump_json().encode() + b"\n" for row in over)


def _read_newer(storage: Path, known: list[Milestones]) -> list[Milestones]:
    """Return the milestones of the generations after the known ones, one by one."""
    begin = len(known) + 1
    records = read_records(storage, Cursor(generation=begin))
    found = {row.generation: row for row in find_milestones(records)}
    return [
        found.get(generation) or Milestones(generation=generation)
        for generation in range(begin, newest_generation(storage) + 1)
    ]


def _read_summary(storage: Path) -> list[Milestones]:
    """Return the rows of the summary, up to the first generation that lacks one."""
    file, newest = _summary_file(storage), newest_generation(storage)
    rows: dict[int, Milestones] = {}
    for line in file.read_bytes().split(b"\n") if file.is_file() else ():
        try:
            row = Milestones.model_validate_json(line)
        except ValidationError:
            continue
        rows[row.generation] = row
    first_missing = next(n for n in range(1, newest + 2) if n > newest or n not in rows)
    return [rows[n] for n in range(1, first_missing)]


def _summary_file(storage: Path) -> Path:
    return storage / "records" / "summary.jsonl"


__all__ = ["extend_summary", "read_milestones"]
