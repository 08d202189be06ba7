"""Start training with the model of another job; all ranks together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accordion_workers.checkpoint.broadcast import broadcast_state
from accordion_workers.checkpoint.saved_model import read_model
from accordion_workers.checkpoint.storage import open_storage
from accordion_workers.common.errors import CheckpointError, StorageError, TaskRaised
from accordion_workers.records.contract import ModelSource
from accordion_workers.training.resume import wait_for_storage
from accordion_workers.training.sharded_state import load_whole_model
from accordion_workers.training.train_state import TrainState

_MAX_DIFFERENCES = 3
"""Differences between two models that a message names; more are counted."""


def load_initial_model(state: TrainState, source: ModelSource) -> None:
    """Replace the parameters and buffers of the model before the first step; rank 0 reads them for
    all ranks.

    Raises:
        StorageError: the other job has no complete checkpoint any more.
        TaskRaised: its model has other parameters or buffers.
        StopRequested: the job was paused or cancelled while the storage was unreachable.
    """
    is_first = state.context.rank == 0
    try:
        found = wait_for_storage(state, lambda: _read(source) if is_first else None)
    except CheckpointError as error:
        raise StorageError(
            f"the model of job {source.job_id} to start with cannot be read: {error}; name another"
            " checkpoint in warm_start"
        ) from error
    name, model = broadcast_state(found, state.context.peers, device=state.context.device)
    try:
        load_whole_model(state.model, model)
    except RuntimeError as error:
        raise TaskRaised(
            None,
            None,
            f"the model of checkpoint {name} of job {source.job_id} does not fit:"
            f" {_describe_misfit(error)}",
        ) from error
    if is_first:
        state.context.link.log(
            f"training starts with the model of checkpoint {name} of job {source.job_id}"
        )


def _describe_misfit(error: RuntimeError) -> str:
    """Return the first differences that torch found between the models, and count the others."""
    lines = [line.strip().rstrip(".") for line in str(error).splitlines()]
    differences = lines[1:] or lines  # the first line names the class of the model
    more = len(differences) - _MAX_DIFFERENCES
    shown = differences[:_MAX_DIFFERENCES] + ([f"and {more} more"] if more > 0 else [])
    return "; ".join(shown)


def _read(source: ModelSource) -> tuple[str, Mapping[str, Any]]:
    storage = open_storage(source.url, job_id=source.job_id, directory=Path(source.directory))
    found = read_model(storage, source.names, job_id=source.job_id, order=source.order)
    return found.manifest.name, found.state


__all__ = ["load_initial_model"]
