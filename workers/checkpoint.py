"""Saved states on disk: one directory each, a manifest with checksums written last.

A directory without a manifest, with a manifest of another job or with a file that does not match its checksum is never
resumed from. Nothing here talks to other ranks; `state.py` says what goes in.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from workers.errors import CheckpointError
from workers.sampler import Position

_FORMAT = 1
_MANIFEST = "manifest.json"
_CHUNK_BYTES = 1 << 20


class FileSum(BaseModel):
    """What a file of a checkpoint must look like."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str
    size_bytes: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """The file as it is now."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        return cls(name=path.name, sha256=digest.hexdigest(), size_bytes=path.stat().st_size)


class Manifest(BaseModel):
    """The table of contents; there is one exactly when the checkpoint is complete."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = _FORMAT
    job_id: str
    name: str
    epoch: int
    step: int
    world_size: int
    files: tuple[FileSum, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(file.size_bytes for file in self.files)


def checkpoint_name(generation: int, position: Position) -> str:
    """Sorts as text by age: whatever an older generation wrote comes before."""
    return f"g{generation:012d}-e{position.epoch:06d}-s{position.samples:010d}"


def write_part(directory: Path, name: str, state: Mapping[str, Any]) -> FileSum:
    """Save one rank's part; any rank, before the manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    with path.open("wb") as file:
        torch.save(dict(state), file)
        _to_disk(file.fileno())
    return FileSum.of(path)


def read_part(directory: Path, name: str) -> dict[str, Any]:
    """One rank's part; only tensors and plain values are loaded, never code."""
    state: dict[str, Any] = torch.load(directory / name, map_location="cpu", weights_only=True)
    return state


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Make the checkpoint complete, in one move; rank 0, when all parts are there."""
    path = directory / _MANIFEST
    draft = path.with_suffix(".part")
    with draft.open("w") as file:
        file.write(manifest.model_dump_json(indent=1))
        file.flush()
        _to_disk(file.fileno())
    draft.replace(path)


def newest(root: Path, job_id: str, refused: Callable[[str], None]) -> Manifest | None:
    """The newest checkpoint that is whole and the job's own; those before it in age are told to `refused`, with why."""
    for directory in sorted(_directories(root), reverse=True):
        try:
            return check(directory, job_id)
        except CheckpointError as error:
            refused(str(error))
    return None


def check(directory: Path, job_id: str) -> Manifest:
    """The manifest, after every file was compared with it.

    Raises:
        CheckpointError: no manifest or an unreadable one, another job's, a file that is missing or does not match.
    """
    manifest = _read_manifest(directory)
    if manifest.job_id != job_id:
        raise CheckpointError(
            f"checkpoint {directory.name} belongs to job {manifest.job_id}, not to {job_id}; it is left alone"
        )
    for file in manifest.files:
        path = directory / file.name
        if not path.is_file():
            raise CheckpointError(f"checkpoint {directory.name} lacks {file.name}; the one before it is used")
        if FileSum.of(path) != file:
            raise CheckpointError(
                f"checkpoint {directory.name}: {file.name} does not match its checksum; the one before it is used"
            )
    return manifest


def prune(root: Path, *, keep: int, newest_name: str) -> None:
    """Remove all but the newest `keep` complete checkpoints up to this one; torn ones older than it go too.

    What is newer than `newest_name` is not touched: it belongs to a later generation.
    """
    ours = sorted((path for path in _directories(root) if path.name <= newest_name), reverse=True)
    complete = [path for path in ours if (path / _MANIFEST).is_file()]
    for directory in set(ours) - set(complete[:keep]):
        # without its manifest a half removed checkpoint is a torn one, whenever we are interrupted.
        (directory / _MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)


def _directories(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []


def _read_manifest(directory: Path) -> Manifest:
    try:
        text = (directory / _MANIFEST).read_text()
    except OSError as error:
        raise CheckpointError(f"checkpoint {directory.name} was never finished; the one before it is used") from error
    try:
        manifest = Manifest.model_validate(json.loads(text))
    except (ValueError, ValidationError) as error:
        raise CheckpointError(
            f"checkpoint {directory.name} has a damaged manifest; the one before it is used"
        ) from error
    if manifest.format != _FORMAT:
        raise CheckpointError(
            f"checkpoint {directory.name} has format {manifest.format}, this version reads {_FORMAT}; it is left alone"
        )
    return manifest


def _to_disk(descriptor: int) -> None:
    # a record that says "can be resumed from" must hold after a power cut too.
    os.fsync(descriptor)
