"""Which guest run this is: its id and generation, kept in the storage of the Ray Train run.

    STORAGE/RUN/accordion/NAME/guest.json              id and generation of the guest run
    STORAGE/RUN/accordion/NAME/JOB_ID/records/*.jsonl  what it recorded, on a local or shared directory

If the storage is an object store, records are kept in a temporary directory of rank 0's node instead.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uuid_utils

from accordion_ray.train_context import TrainRun
from workers.journal import claim_generation

_FILE = "guest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A guest run's place in the service's history."""

    job_id: str
    generation: int
    records: Path
    """Directory of the journal."""


class IdentityFile:
    """Reads and writes the identity of one guest run in the storage of its Ray Train run."""

    def __init__(self, run: TrainRun, name: str) -> None:
        self._filesystem = run.filesystem
        self._folder = f"{run.path}/accordion/{name.replace('/', '-')}"

    def claim(self) -> Identity:
        """Return the identity for a new worker group: that of the interrupted run, or a new one.

        Raises:
            OSError: the storage cannot be read or written.
        """
        saved = self._read()
        if not saved or saved["ended"]:
            saved = {"job_id": str(uuid_utils.uuid7()), "generation": 0}
        job_id, generation = str(saved["job_id"]), int(saved["generation"]) + 1
        records = self._records(job_id)
        if self._is_local:
            generation = claim_generation(records)
        self._write(job_id, generation, ended=False)
        return Identity(job_id=job_id, generation=generation, records=records)

    def mark_ended(self, identity: Identity) -> None:
        """Record that the run has ended: the next one in this storage gets an id of its own.

        Raises:
            OSError: the storage cannot be written.
        """
        self._write(identity.job_id, identity.generation, ended=True)

    @property
    def _is_local(self) -> bool:
        return getattr(self._filesystem, "type_name", "") == "local"

    def _records(self, job_id: str) -> Path:
        if self._is_local:
            return Path(self._folder) / job_id
        folder = Path(tempfile.mkdtemp(prefix="accordion-guest-"))
        (folder / "records").mkdir()
        return folder

    def _read(self) -> dict[str, Any] | None:
        try:
            with self._filesystem.open_input_stream(f"{self._folder}/{_FILE}") as file:
                saved = json.loads(file.read())
        except FileNotFoundError:
            return None
        except ValueError:
            # A process died while it wrote the file.
            return None
        return saved if isinstance(saved, dict) and saved.keys() >= {"job_id", "generation", "ended"} else None

    def _write(self, job_id: str, generation: int, *, ended: bool) -> None:
        text = json.dumps({"job_id": job_id, "generation": generation, "ended": ended})
        self._filesystem.create_dir(self._folder, recursive=True)
        with self._filesystem.open_output_stream(f"{self._folder}/{_FILE}") as file:
            file.write(text.encode())
