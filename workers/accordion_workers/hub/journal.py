"""The job's records on disk, one file per generation, until the database has confirmed them.

    storage/records/000000007.jsonl     one record per line; the file name is the generation
    storage/records/summary.jsonl       see `journal_summary.py`
    storage/end.json                    how the job ended, and all its records

A generation is claimed by creating its file, which only one process can do, so generations grow
over supervisors, attempts and lost clusters. Torn lines are skipped: their writer died before it
could acknowledge them.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Container, Iterator
from pathlib import Path

from pydantic import ValidationError

from accordion_workers.common.secret_mask import SecretMask
from accordion_workers.records.contract import Cursor, Drained, EndRecord, Payload, Record

_FORCED = frozenset({"started", "epoch"})
"""Kinds of records that checkpoints depend on; flushed to disk before a checkpoint is."""
_LINE = re.compile(rb'\{"attempt":(\d+),"generation":(\d+),"seq":(\d+),')
"""Beginning of a record's line."""
Clock = Callable[[], float]
"""Seconds since 1970."""
RecordKey = tuple[int, int, int]
"""Attempt, generation and sequence number: the order of records."""


class SupersededError(Exception):
    """A newer worker group runs this job, and records of this group are ignored."""


def claim_generation(storage: Path) -> int:
    """Claim and return a new generation.

    Raises:
        OSError: the storage cannot be written.
    """
    folder = storage / "records"
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        generation = max(_list_generations(folder), default=0) + 1
        try:
            _generation_file(folder, generation).touch(exist_ok=False)
        except FileExistsError:
            continue
        return generation


def newest_generation(storage: Path) -> int:
    """Return the highest generation that was claimed, 0 before the first."""
    folder = storage / "records"
    return max(_list_generations(folder), default=0) if folder.is_dir() else 0


def is_superseded(storage: Path, generation: int) -> bool:
    """Whether a newer generation was claimed, so that this one's records no longer count."""
    return newest_generation(storage) > generation


def read_records(storage: Path, above: Cursor | None = None) -> list[Record]:
    """Return all records of the job, or those above a cursor, in order."""
    least = above or Cursor()
    folder = storage / "records"
    files = (
        _generation_file(folder, generation)
        for generation in sorted(_list_generations(folder))
        if generation >= least.generation
    )
    records = [
        record
        for file in files
        for record in _parse_records(file, record_key(least))
        if record_key(record) > record_key(least)
    ]
    return sorted(records, key=record_key)


def record_key(item: Record | Cursor) -> RecordKey:
    """Return the key by which records are ordered."""
    return (item.attempt, item.generation, item.seq)


class Journal:
    """Writes the records of one generation; any thread may write.

    Args:
        storage: directory of the records.
        attempt: attempt of the job.
        generation: a generation that this process has claimed.
        clock: seconds since 1970.
        is_forced: whether records that checkpoints depend on are flushed to the disk.
        mask: replaces secrets in messages; None if the job has none.
    """

    def __init__(
        self,
        storage: Path,
        *,
        attempt: int,
        generation: int,
        clock: Clock,
        is_forced: bool = True,
        mask: SecretMask | None = None,
    ) -> None:
        self.storage = storage
        self.attempt = attempt
        self.generation = generation
        self._clock = clock
        self._is_forced = is_forced
        self._mask = mask or SecretMask()
        self._seq = 0
        self._lock = threading.Lock()

    def write(self, payload: Payload) -> Record:
        """Write the payload to disk and return its record.

        Raises:
            OSError: the storage cannot be written.
        """
        with self._lock:
            key = {"attempt": self.attempt, "generation": self.generation, "seq": self._seq}
            masked = self._mask.apply_to_record(payload)
            record = Record(**key, time=self._clock(), payload=masked)
            with _generation_file(self.storage / "records", self.generation).open("ab") as file:
                # The leading newline ends a line that a full disk tore.
                file.write(b"\n" + record.model_dump_json().encode() + b"\n")
                if self._is_forced and payload.kind in _FORCED:
                    file.flush()
                    os.fsync(file.fileno())
            self._seq += 1
            return record

    def compact(self, kept: Container[RecordKey]) -> None:
        """Remove all other records from disk; files of newer generations stay as they are.

        Empty files stay, because they mark claimed generations.

        Raises:
            OSError: the storage cannot be read or written.
        """
        folder = self.storage / "records"
        with self._lock:
            for generation in _list_generations(folder):
                if generation <= self.generation:
                    _keep_lines(_generation_file(folder, generation), kept)


def write_end(storage: Path, end: EndRecord) -> None:
    """Write the job's end with all its records, atomically.

    Raises:
        OSError: the storage cannot be written.
    """
    records = [record.model_dump(mode="json") for record in read_records(storage)]
    target = storage / "end.json"
    draft = target.with_suffix(".draft")
    with draft.open("w", encoding="utf-8") as file:
        json.dump({"end": end.model_dump(mode="json"), "records": records}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(target)


def read_end(storage: Path, *, retried_attempt: int = 0) -> tuple[EndRecord, Drained] | None:
    """Return how the job ended and all its records; None if it has not ended.

    An end recorded by an attempt up to `retried_attempt` does not count: the job was retried.
    """
    file = storage / "end.json"
    if not file.exists():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    records = tuple(Record.model_validate(record) for record in content["records"])
    ended_attempt = max(
        (record.attempt for record in records if isinstance(record.payload, EndRecord)), default=0
    )
    if retried_attempt and ended_attempt <= retried_attempt:
        return None
    return EndRecord.model_validate(content["end"]), Drained(records=records)


def _generation_file(folder: Path, generation: int) -> Path:
    return folder / f"{generation:09d}.jsonl"


def _list_generations(folder: Path) -> list[int]:
    return [int(file.stem) for file in folder.glob("*.jsonl") if file.stem.isdecimal()]


def _keep_lines(file: Path, kept: Container[RecordKey]) -> None:
    lines = [line for line in file.read_bytes().split(b"\n") if line]
    keys = [
        tuple(map(int, found.groups())) if (found := _LINE.match(line)) else None for line in lines
    ]
    left = [line for line, key in zip(lines, keys, strict=True) if key in kept]
    if len(left) < len(lines):
        draft = file.with_suffix(".draft")
        draft.write_bytes(b"".join(b"\n" + line + b"\n" for line in left))
        draft.replace(file)


def _parse_records(file: Path, least: RecordKey) -> Iterator[Record]:
    """Yield the records of a file; lines that are plainly not above the key are not parsed."""
    # Bytes, because a torn line may end inside a character, and str.splitlines splits at more
    # characters than newlines.
    for line in file.read_bytes().split(b"\n"):
        found = _LINE.match(line)
        if found and tuple(map(int, found.groups())) <= least:
            continue
        try:
            yield Record.model_validate_json(line)
        except ValidationError:
            continue


__all__ = [
    "Clock",
    "Journal",
    "SupersededError",
    "claim_generation",
    "is_superseded",
    "newest_generation",
    "read_end",
    "read_records",
    "record_key",
    "write_end",
]
