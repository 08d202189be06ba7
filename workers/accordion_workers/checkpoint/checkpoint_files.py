"""Files of checkpoints: one directory each, with a manifest of checksums written last.

A directory without a manifest, with another job's manifest or with a file that does not match its
checksum is never resumed from. This module does not communicate with other ranks;
`training/checkpointing.py` decides what is saved.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Any, BinaryIO, Self, cast

import torch
from pydantic import BaseModel, ConfigDict, Field

from accordion_workers.checkpoint.lineage import Lineage, SurvivorFilter, newest_first
from accordion_workers.checkpoint.storage import MANIFEST as _MANIFEST
from accordion_workers.checkpoint.storage import Storage
from accordion_workers.checkpoint.storage import discard_checkpoint as discard_checkpoint
from accordion_workers.common.errors import CheckpointError
from accordion_workers.records.contract import Position
from accordion_workers.spec.objective import Mode

_FORMAT = 1


class FileChecksum(BaseModel):
    """Name, size and checksum of a checkpoint's file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str
    size_bytes: int

    @classmethod
    def of(cls, name: str, content: bytes) -> Self:
        """Compute name, size and checksum from the content."""
        return cls(name=name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))


class Manifest(BaseModel):
    """Table of contents; it exists if and only if the checkpoint is complete."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = _FORMAT
    job_id: str
    name: str
    epoch: int = Field(ge=0)
    step: int = Field(ge=0)
    world_size: int = Field(ge=1)
    num_shards: int = Field(default=1, ge=1)
    """Workers that held one model together."""
    objective: float | None = None
    """Value of the objective's metric after the epoch that ends here; None within an epoch."""
    files: tuple[FileChecksum, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of all files together, in bytes."""
        return sum(file.size_bytes for file in self.files)


def checkpoint_name(generation: int, position: Position) -> str:
    """Return a name that sorts by age as text: names of older generations come first."""
    return f"g{generation:012d}-e{position.epoch:06d}-s{position.samples:010d}"


def write_part(storage: Storage, path: str, state: Mapping[str, Any]) -> FileChecksum:
    """Save a part, `checkpoint/file`; on any rank, before the manifest.

    Raises:
        OSError: the storage cannot be written.
    """
    with storage.writer(path) as file:
        sink = _ChecksumWriter(file)
        torch.save(dict(state), cast("IO[bytes]", sink))
        sink.check()
    return FileChecksum(
        name=path.rpartition("/")[2], sha256=sink.digest.hexdigest(), size_bytes=sink.size_bytes
    )


def read_part(storage: Storage, manifest: Manifest, name: str) -> dict[str, Any]:
    """Read a part that matches its checksum; loads tensors and plain values only, never code.

    Raises:
        CheckpointError: it is missing or does not match its checksum.
        OSError: the storage cannot be reached, which says nothing about the checkpoint.
    """
    try:
        content = storage.read(f"{manifest.name}/{name}")
    except FileNotFoundError as error:
        raise CheckpointError(
            f"checkpoint {manifest.name} lacks {name}; the one before it is used"
        ) from error
    if FileChecksum.of(name, content) not in manifest.files:
        raise CheckpointError(
            f"checkpoint {manifest.name}: {name} does not match its checksum; the one before it is"
            " used"
        )
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Complete the checkpoint; on rank 0, when all parts are written.

    Raises:
        OSError: the storage cannot be written.
    """
    content = manifest.model_dump(mode="json")
    stored = {"manifest": content, "sha256": _hash_content(content)}
    storage.put(f"{manifest.name}/{_MANIFEST}", json.dumps(stored, indent=1).encode())


def find_candidates(
    storage: Storage, job_id: str, refused: Callable[[str], None], *, lineage: Lineage | None = None
) -> Iterator[Manifest]:
    """Yield the job's finished checkpoints on the surviving line, the newest first.

    Calls `refused` with one sentence for every other checkpoint: saved by a worker group that had
    been given up, unfinished, damaged, or holding epochs that the job's records lack.

    Raises:
        OSError: the storage cannot be reached.
    """
    past, names = lineage or Lineage(), storage.names()
    surviving = past.survivors(names)
    for name in sorted(set(names).difference(surviving), reverse=True):
        refused(
            f"checkpoint {name} was saved by a worker group that had been given up; it is not"
            " resumed from"
        )
    for name in surviving:
        try:
            manifest = read_manifest(storage, name, job_id)
            _check_history(manifest, past)
        except CheckpointError as error:
            refused(str(error))
        else:
            yield manifest


def _check_history(manifest: Manifest, lineage: Lineage) -> None:
    missing = lineage.missing_epochs(manifest.epoch)
    if missing:
        raise CheckpointError(
            f"checkpoint {manifest.name} holds {manifest.epoch} epochs, and the job's records lack"
            f" epoch {missing[0]}; the one before it is used"
        )


def read_manifest(storage: Storage, name: str, job_id: str | None) -> Manifest:
    """Read a checkpoint's manifest, of any job if `job_id` is None; its files are checked when they
    are read.

    Raises:
        CheckpointError: the manifest is missing or unreadable, or of another format or job.
        OSError: the storage cannot be reached.
    """
    try:
        manifest = _parse_manifest(storage.read(f"{name}/{_MANIFEST}"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"checkpoint {name} was never finished; the one before it is used"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"checkpoint {name} has a damaged manifest; the one before it is used"
        ) from error
    if manifest.format != _FORMAT:
        raise CheckpointError(
            f"checkpoint {name} has format {manifest.format}, this version reads {_FORMAT}; it is"
            " left alone"
        )
    if job_id not in (None, manifest.job_id):
        raise CheckpointError(
            f"checkpoint {name} belongs to job {manifest.job_id}, not to {job_id}; it is left alone"
        )
    return manifest


def _parse_manifest(text: bytes) -> Manifest:
    """Return the manifest that `write_manifest` was given.

    Raises:
        KeyError, TypeError, ValueError: it is not a manifest, or does not match its checksum.
    """
    stored = json.loads(text)
    if stored["sha256"] != _hash_content(stored["manifest"]):
        raise ValueError("the manifest does not match its checksum")
    return Manifest.model_validate(stored["manifest"])


def _hash_content(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def prune_checkpoints(
    storage: Storage,
    *,
    keep: int,
    newest_name: str,
    survivors: SurvivorFilter = newest_first,
    keep_best: Mode | None = None,
) -> None:
    """Remove all but the newest `keep` complete checkpoints on the surviving line, up to this one,
    and the one with the best objective if `keep_best` tells which value is better.

    Older incomplete checkpoints and those of worker groups that were given up are removed as well.
    Checkpoints newer than `newest_name` belong to a later generation and stay.

    Raises:
        OSError: the storage cannot be reached.
    """
    ours = [name for name in storage.names() if name <= newest_name]
    complete = [name for name in survivors(ours) if storage.holds(f"{name}/{_MANIFEST}")]
    best = rank_by_objective(storage, complete, keep_best)[:1] if keep_best else ()
    kept = {*complete[:keep], *best}
    for name in set(ours) - kept:
        discard_checkpoint(storage, name)


def rank_by_objective(storage: Storage, names: Iterable[str], mode: Mode) -> list[str]:
    """Return the names of the checkpoints whose manifests have an objective, the best first, and
    the older one of equal ones.

    Raises:
        OSError: the storage cannot be reached.
    """
    values = {}
    for name in sorted(names):
        with suppress(CheckpointError):
            manifest = read_manifest(storage, name, job_id=None)
            if manifest.objective is not None:
                values[name] = manifest.objective
    return sorted(values, key=values.__getitem__, reverse=mode == "max")


class _ChecksumWriter:
    """File for `torch.save` that computes the checksum while writing, so that no file is read
    again.

    An error is kept for `check`, because torch would raise another one in its place.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.digest = hashlib.sha256()
        self.size_bytes = 0
        self._file = file
        self._error: Exception | None = None

    def write(self, content: bytes) -> int:
        if self._error is None:
            try:
                self._file.write(content)
            except Exception as error:  # noqa: BLE001  # raised by `check`
                self._error = error
        self.digest.update(content)
        self.size_bytes += len(content)
        return len(content)

    def flush(self) -> None:
        """Do nothing: the storage's writer flushes."""

    def check(self) -> None:
        if self._error is not None:
            raise self._error
