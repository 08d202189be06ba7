"""The packages of a job in its storage: what was resolved once, and the wheels, for all nodes.

    storage/packages/resolution.json    what was resolved, with the SHA-256 of each wheel
    storage/packages/wheels/

`storage/packages` is renamed into place, so it is complete or not there.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Set
from pathlib import Path

from accordion_workers.records.contract import Package
from accordion_workers.spec.types import Sha256, Strict

WHEELS = "wheels"
"""Folder of the wheels, beside the file of the resolution."""
_RESOLUTION = "resolution.json"

log = logging.getLogger(__name__)


class Wheel(Package):
    """A wheel in the job's storage; its name is in the normal form."""

    sha256: Sha256


class Resolution(Strict):
    """Wheels that the requirements of a job resolve to, beside what the workers have."""

    wheels: tuple[Wheel, ...]

    @property
    def names(self) -> Set[str]:
        """Names of the wheels' packages, in their normal form."""
        return {wheel.name for wheel in self.wheels}


def packages_folder(storage: Path) -> Path:
    """Return the folder of a job's resolution and wheels."""
    return storage / "packages"


def write_resolution(folder: Path, resolution: Resolution) -> None:
    """Write the resolution into a folder that has its wheels, and wait until both are on disk."""
    (folder / _RESOLUTION).write_text(resolution.model_dump_json(indent=1))
    for path in [*folder.rglob("*"), folder]:
        _sync_to_disk(path)


def _sync_to_disk(path: Path) -> None:
    """Wait until a file, or the list of a folder's files, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_resolution(storage: Path) -> Resolution | None:
    """Return the resolution of a job; None before there is one, and if it is unreadable."""
    file = packages_folder(storage) / _RESOLUTION
    try:
        return Resolution.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        log.warning("%s is unreadable", file)
        return None


def create_draft(storage: Path) -> Path:
    """Return a new folder with one for wheels; what a killed process left is removed."""
    folder = packages_folder(storage)
    for left in storage.glob(f"{folder.name}.new-*"):
        shutil.rmtree(left, ignore_errors=True)
    draft = storage / f"{folder.name}.new-{uuid.uuid4().hex}"
    draft.mkdir()
    (draft / WHEELS).mkdir()
    return draft


def publish_draft(draft: Path, storage: Path) -> None:
    """Rename a complete draft into place, in place of a resolution that is unreadable."""
    folder = packages_folder(storage)
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)
    _sync_to_disk(storage)


__all__ = [
    "WHEELS",
    "Resolution",
    "Wheel",
    "create_draft",
    "packages_folder",
    "publish_draft",
    "read_resolution",
    "write_resolution",
]
