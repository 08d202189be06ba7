"""Context of a script outside of a job: started by torchrun, by Ray Train or by hand."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import ValidationError

from accordion_workers.common.errors import CodeError, StorageError
from accordion_workers.hub.journal import (
    Journal,
    SupersededError,
    claim_generation,
    newest_generation,
)
from accordion_workers.records.contract import JobSpec, Launch, Payload, Started
from accordion_workers.tasks import STANDALONE
from accordion_workers.training.clock import Clock
from accordion_workers.training.context import NoLink, WorkerContext
from accordion_workers.training.slow_work import decide_on_rank_0
from accordion_workers.training.train_state import TrainState

NO_JOB = "script"
"""Placeholder for a job's id, also in manifests."""

logger = logging.getLogger(__name__)


def standalone_context(job: Mapping[str, Any], storage: str | Path | None) -> WorkerContext:
    """Return this worker's context; all workers call it together if there is a storage.

    Raises:
        CodeError: there is no process group, or `storage` is empty or a URL.
        StorageError: the directory cannot be written.
    """
    if not dist.is_initialized():
        raise CodeError("there is no process group; call session.init_process_group() first")
    spec, directory = _build_spec(job), _storage_path(storage)
    world_size, rank = dist.get_world_size(), dist.get_rank()
    generation = _claim_shared_generation(directory) if directory else 1
    link = NoLink(logger.info)
    if directory and rank == 0:
        link = JournalLink(
            Journal(Path(directory), attempt=1, generation=generation, clock=Clock().now)
        )
    return WorkerContext(
        launch=Launch(job_id=NO_JOB, attempt=1, workers=world_size, storage=directory, spec=spec),
        generation=generation,
        rank=rank,
        world_size=world_size,
        device=f"cuda:{torch.cuda.current_device()}" if _on_gpus() else "cpu",
        link=link,
    )


def check_unchanged(
    context: WorkerContext, job: Mapping[str, Any] | None, storage: str | Path | None
) -> None:
    """Check that these arguments are already in force; in a job they are ignored.

    Raises:
        CodeError: the session was used with other arguments before.
    """
    launch = context.launch
    if launch.job_id != NO_JOB:
        return
    is_other_job = bool(job) and _build_spec(job or {}) != launch.spec
    if is_other_job or (storage is not None and _storage_path(storage) != launch.storage):
        raise CodeError(
            "session.init_process_group() got job or storage after the session was used; call it"
            " once, before the session is used, even if there is a process group"
        )


def check_not_superseded(state: TrainState) -> None:
    """Check on all workers that no other run has started on the storage of a run outside of a job.

    Raises:
        SupersededError: another run has started on it.
    """
    launch = state.context.launch
    if launch.job_id != NO_JOB or not launch.storage:
        return
    newest = decide_on_rank_0(state, lambda: newest_generation(Path(launch.storage)))
    if newest > state.context.generation:
        raise SupersededError(
            f"another run started on storage {launch.storage} (generation {newest}, this run has "
            f"{state.context.generation}); give each run a directory of its own"
        )


def log_resume(state: TrainState, resumed_from: str | None) -> None:
    """Log where a run outside of a job resumes, on rank 0, as a warning because those are visible
    by default.
    """
    if resumed_from is not None and _is_logging_rank(state):
        logger.warning(
            "resumed from %s: epoch %d, step %d",
            resumed_from,
            state.position.epoch,
            state.session.steps,
        )


def log_if_done(state: TrainState, epochs: int) -> None:
    """Log that a run outside of a job has no epochs left to train, on rank 0."""
    if state.position.epoch >= epochs and _is_logging_rank(state):
        logger.warning("all %d epochs have been trained; nothing is left to train", epochs)


class JournalLink(NoLink):
    """Rank 0's link without a service: records go to the journal only, log lines to
    Python's log.
    """

    def __init__(self, journal: Journal) -> None:
        super().__init__(logger.info)
        self._journal = journal

    def started(self, started: Started, controller_state: Mapping[str, Any]) -> None:
        """Write the record by which later groups know what this one resumed from."""
        del controller_state
        self._journal.write(started)

    def post(self, payload: Payload) -> None:
        """Write a record."""
        self._journal.write(payload)


def _is_logging_rank(state: TrainState) -> bool:
    return state.context.launch.job_id == NO_JOB and state.context.rank == 0


def _build_spec(job: Mapping[str, Any]) -> JobSpec:
    """Return the spec of a run outside of a job.

    Raises:
        CodeError: it names data, which only jobs fetch, or is no part of a job file.
    """
    if job.get("data"):
        raise CodeError(
            f"job has data ({', '.join(job['data'])}), which are fetched for jobs of the service"
            " only; leave them out, and set variables such as ACCORDION_DATA_TRAIN to their paths"
        )
    try:
        return JobSpec.model_validate(
            {"task": {"name": STANDALONE}, "workers": {"min": 1, "max": 1}, **job}
        )
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "job"
        raise CodeError(
            f"job of session.init_process_group() is no part of a job file: {place}:"
            f" {first['msg'].removeprefix('Value error, ')}"
        ) from error


def _storage_path(storage: str | Path | None) -> str:
    """Return the directory as an absolute path, and an empty string if there is none."""
    if storage is None:
        return ""
    if storage == "":
        raise CodeError(
            "storage is empty; give a directory that all workers see, or leave storage out"
        )
    if "://" in str(storage):
        raise CodeError(
            f"storage {str(storage)!r} is a URL; give a directory that all workers see, and the URL"
            ' as job={"checkpoint": {"storage": ...}} to keep checkpoints there'
        )
    return str(Path(storage).absolute())


def _claim_shared_generation(directory: str) -> int:
    """Claim a generation on rank 0 for all ranks."""
    claimed: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            claimed = [claim_generation(Path(directory))]
        except OSError as error:
            claimed = [f"{type(error).__name__}: {error}"]
    dist.broadcast_object_list(claimed, src=0)
    if isinstance(claimed[0], str):
        raise StorageError(
            f"storage {directory} cannot be written: {claimed[0]}; make the directory writable for"
            " the workers"
        )
    return int(claimed[0])


def join_group(backend: str | None) -> None:
    """Join the process group that torchrun has announced; without a name of the backend on GPUs by
    torch's choice, and on CPUs by gloo: a group that torch chooses has no name, and Lightning takes
    it for NCCL.

    Raises:
        CodeError: nobody has announced one.
    """
    if "RANK" not in os.environ:
        raise CodeError(
            "this process belongs to no group of workers; start the script with torchrun"
            " --nproc-per-node 2 FILE, or submit it as a job"
        )
    dist.init_process_group(backend or (None if torch.cuda.is_available() else "gloo"))


def _on_gpus() -> bool:
    """Return whether the group's backend for GPUs is NCCL, also if gloo serves the CPU
    beside it.
    """
    return "nccl" in dist.get_backend_config() and torch.cuda.is_available()


__all__ = [
    "NO_JOB",
    "JournalLink",
    "check_not_superseded",
    "check_unchanged",
    "join_group",
    "log_if_done",
    "log_resume",
    "standalone_context",
]
