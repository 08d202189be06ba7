"""The context of a script that torchrun, Ray Train or a person started, outside of a job."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from workers.clock import Clock
from workers.context import NoLink, WorkerContext
from workers.contract import JobSpec, Launch, Payload, Started
from workers.errors import CodeError, StorageError
from workers.journal import Journal, claim_generation

NO_JOB = "script"
"""Stands in for a job's id, in manifests too."""

logger = logging.getLogger(__name__)


def standalone_context(job: Mapping[str, Any], storage: str | Path | None) -> WorkerContext:
    """Return this worker's context; all workers call it together if there is a storage.

    Raises:
        CodeError: there is no process group, or `storage` is a URL.
        StorageError: the directory cannot be written.
    """
    if not dist.is_initialized():
        raise CodeError("there is no process group; call session.init_process_group() first")
    if "://" in str(storage):
        raise CodeError(
            f"storage {str(storage)!r} is a URL; give a directory that all workers see, and the URL as "
            'job={"checkpoint": {"storage": ...}} if checkpoints are to lie there'
        )
    spec = JobSpec.model_validate({"task": {"name": "session:Script"}, "workers": {"min": 1, "max": 1}, **job})
    place = "" if storage is None else str(Path(storage).absolute())
    world_size, rank = dist.get_world_size(), dist.get_rank()
    generation = _share_generation(place) if place else 1
    link = NoLink(logger.info)
    if place and rank == 0:
        link = JournalLink(Journal(Path(place), attempt=1, generation=generation, clock=Clock().now))
    return WorkerContext(
        launch=Launch(job_id=NO_JOB, attempt=1, workers=world_size, storage=place, spec=spec),
        generation=generation,
        rank=rank,
        world_size=world_size,
        device=f"cuda:{torch.cuda.current_device()}" if _on_gpus() else "cpu",
        link=link,
    )


class JournalLink(NoLink):
    """Rank 0's link without a service: records go to the journal only, log lines to Python's log."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logger.info)
        self._journal = journal

    def started(self, started: Started, controller_state: Mapping[str, Any]) -> None:
        """Write the record that tells later groups what this one resumed from."""
        del controller_state
        self._journal.write(started)

    def post(self, payload: Payload) -> None:
        """Write a record."""
        self._journal.write(payload)


def _share_generation(place: str) -> int:
    """Claim a generation on rank 0 for all ranks."""
    claimed: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            claimed = [claim_generation(Path(place))]
        except OSError as error:
            claimed = [f"{type(error).__name__}: {error}"]
    dist.broadcast_object_list(claimed, src=0)
    if isinstance(claimed[0], str):
        raise StorageError(f"storage {place} cannot be written: {claimed[0]}; let the workers write there")
    return int(claimed[0])


def _on_gpus() -> bool:
    """Return whether the group's backend for GPUs is NCCL, also if gloo serves the CPU beside it."""
    return "nccl" in dist.get_backend_config() and torch.cuda.is_available()


__all__ = ["NO_JOB", "JournalLink", "standalone_context"]
