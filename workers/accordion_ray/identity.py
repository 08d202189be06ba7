"""Identity of a guest run, and the state left by earlier worker groups, in the run's storage.

    STORAGE/RUN/accordion/NAME/guest.json              id, generation and `GuestState`
    STORAGE/RUN/accordion/NAME/JOB_ID/records/*.jsonl  its records (local or shared directory)

If the storage is an object store, records are kept in a temporary directory of rank 0's node
instead, which the next worker group finds if its rank 0 is on the same node.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import uuid_utils
from pydantic import ValidationError

from accordion_ray.train_context import GuestContext
from accordion_workers.hub.journal import claim_generation, newest_generation
from accordion_workers.records.contract import EndRecord, Record

KEPT_DAYS = 30.0
"""Records in temporary directories are removed after this long without a new one."""

_FILE = "guest.json"
_TAIL_BYTES = 1 << 16
"""The end of a journal in which its `EndRecord` is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestState:
    """State that one worker group of a guest run leaves to the next."""

    world_size: int = 0
    """Size of the last worker group; 0 before the first."""
    step: int = 0
    """Last step that was recorded."""
    stepped_at: float = 0.0
    """Time of that step, in seconds since 1970; 0 before the first."""
    failed: bool = False
    """Whether the last worker group recorded its failure."""
    fit: str = ""
    """Id of the call of `fit` whose failures are counted."""
    failures: int = 0
    """Failures recorded in this call of `fit`."""
    installation: str | None = None
    """Installation that the run registered with; None before."""
    ended: bool = False
    """Whether the run has ended; the next one in this storage gets a new id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Id and generation of a guest run's worker group."""

    job_id: str
    generation: int
    records: Path
    """Directory of the journal."""
    state: GuestState = GuestState()
    """Left by the worker groups before this one."""


class IdentityFile:
    """Reads and writes the identity of one guest run in the storage of its Ray Train run."""

    def __init__(self, run: GuestContext, name: str) -> None:
        self._filesystem = run.filesystem
        self._folder = f"{run.path}/accordion/{make_file_name(name)}"
        self._fit = run.fit
        self._writing = threading.Lock()

    def is_restart(self) -> bool:
        """Return whether an interrupted run is in this storage, which the next claim continues.

        Raises:
            OSError: the storage cannot be read.
        """
        return self._read_unfinished() is not None

    def claim(self) -> Identity:
        """Return the identity for a new worker group: that of the interrupted run, or a new one.

        Raises:
            OSError: the storage cannot be read or written.
        """
        saved = self._read_unfinished() or {"job_id": str(uuid_utils.uuid7()), "generation": 0}
        job_id, generation = str(saved["job_id"]), int(saved["generation"]) + 1
        records = self._prepare_records(job_id)
        if self._is_local:
            generation = claim_generation(records)
        state = _parse_state(saved)
        if state.fit != self._fit:
            # Ray Train counts from 0 in each call of fit(), such as that of a script started again.
            state = replace(state, fit=self._fit, failures=0)
        identity = Identity(job_id=job_id, generation=generation, records=records, state=state)
        self._write(identity, state)
        return identity

    def save(self, identity: Identity, state: GuestState) -> None:
        """Save this worker group's state, unless a newer one or another run uses the storage.

        Raises:
            OSError: the storage cannot be read or written.
        """
        saved = self._read()
        mine = (identity.job_id, identity.generation)
        if saved is None or (saved["job_id"], saved["generation"]) == mine:
            self._write(identity, state)

    @property
    def _is_local(self) -> bool:
        return getattr(self._filesystem, "type_name", "") == "local"

    def _records(self, job_id: str) -> Path:
        if self._is_local:
            return Path(self._folder) / job_id
        return _temporary_folder() / job_id

    def _prepare_records(self, job_id: str) -> Path:
        records = self._records(job_id)
        if not self._is_local:
            records.parent.mkdir(mode=0o700, exist_ok=True)
            _remove_old(records.parent)
        (records / "records").mkdir(parents=True, exist_ok=True)
        return records

    def _read_unfinished(self) -> dict[str, Any] | None:
        saved = self._read()
        if saved is None or saved["ended"] or has_recorded_end(self._records(str(saved["job_id"]))):
            return None
        return saved

    def _read(self) -> dict[str, Any] | None:
        try:
            with self._filesystem.open_input_stream(f"{self._folder}/{_FILE}") as file:
                saved = json.loads(file.read())
        except FileNotFoundError:
            return None
        except ValueError:
            # The node died before the file was on its disk.
            return None
        is_whole = isinstance(saved, dict) and saved.keys() >= {"job_id", "generation", "ended"}
        return saved if is_whole else None

    def _write(self, identity: Identity, state: GuestState) -> None:
        content = {"job_id": identity.job_id, "generation": identity.generation, **asdict(state)}
        text = json.dumps(content)
        target = f"{self._folder}/{_FILE}"
        # An object store writes a file whole or not at all, and cannot rename one.
        draft = f"{target}.draft" if self._is_local else target
        with self._writing:
            self._filesystem.create_dir(self._folder, recursive=True)
            with self._filesystem.open_output_stream(draft) as file:
                file.write(text.encode())
            if draft != target:
                self._filesystem.move(draft, target)


def make_file_name(label: str) -> str:
    """Return a label as part of a file's name."""
    return label.replace("/", "-")


def has_recorded_end(records: Path) -> bool:
    """Return whether the newest generation in a journal's directory has recorded the run's end.

    A process may be killed between that record and the mark in `guest.json`.

    Raises:
        OSError: the journal cannot be read.
    """
    generation = newest_generation(records)
    file = records / "records" / f"{generation:09d}.jsonl"
    if generation == 0 or not file.exists():
        return False
    with file.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = stream.read().split(b"\n")
    return any(b'"kind":"end"' in line and _is_end(line) for line in lines)


def _is_end(line: bytes) -> bool:
    try:
        return isinstance(Record.model_validate_json(line).payload, EndRecord)
    except ValidationError:
        return False


def _parse_state(saved: Mapping[str, Any]) -> GuestState:
    names = {field.name for field in fields(GuestState)}
    return GuestState(**{name: value for name, value in saved.items() if name in names})


def _temporary_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"accordion-guests-{os.getuid()}"


def _remove_old(folder: Path) -> None:
    """Remove the records of runs that recorded nothing for a long time."""
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for records in folder.glob("*/records"):
        newest = max(
            (file.stat().st_mtime for file in (records, *records.iterdir())), default=oldest
        )
        if newest < oldest:
            shutil.rmtree(records.parent, ignore_errors=True)
