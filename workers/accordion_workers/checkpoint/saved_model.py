"""The model in a checkpoint of a job, read without the rest of its state."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accordion_workers.checkpoint.async_save import SHARED_FILE, shard_file_name
from accordion_workers.checkpoint.checkpoint_files import (
    Manifest,
    rank_by_objective,
    read_manifest,
    read_part,
)
from accordion_workers.checkpoint.storage import Storage
from accordion_workers.common.errors import CheckpointError
from accordion_workers.spec.warm_start import Order

_LISTINGS = 5
"""How often the checkpoints of a job are listed that removes them while they are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModel:
    """A model of a checkpoint."""

    manifest: Manifest
    state: Mapping[str, Any]
    """Its `state_dict`, on the CPU."""
    configs: Mapping[str, str]
    """Files of a model of Transformers by name (`training/pretrained.py`), else empty."""


def read_model(
    storage: Storage, names: Sequence[str], *, job_id: str, order: Order | None = None
) -> SavedModel:
    """Return the model of the first of these checkpoints that is complete.

    A job that trains may have removed all of them since they were listed. With `order`, the newest
    of those that it has now is read then, or the one with the least or greatest objective.

    Raises:
        CheckpointError: none is complete.
        OSError: the storage cannot be reached.
    """
    existing = set(storage.names())
    shown = names[0] if len(names) == 1 else f"the {len(names)} checkpoints of the job"
    if not existing:
        raise CheckpointError(
            f"nothing can be read of {shown}: no checkpoint of the job is in {storage}; mount the"
            " storage that has them there, or restore them (ACCORDION_STORAGE names the place,"
            " unless the job has a checkpoint.storage)"
        )
    reason = "they were removed, because the job keeps only its newest ones"
    for name in _names_to_try(storage, [name for name in names if name in existing], order):
        try:
            manifest = read_manifest(storage, name, job_id)
            return _read_model(storage, manifest)
        except CheckpointError:
            reason = f"{name} is incomplete or damaged"
    raise CheckpointError(f"nothing can be read of {shown} in {storage}: {reason}")


def _names_to_try(storage: Storage, names: Sequence[str], order: Order | None) -> Iterator[str]:
    yield from names
    tried = set(names)  # what was damaged or removed stays so, and may be large
    for _ in range(_LISTINGS if order is not None else 0):
        found = set(storage.names()) - tried
        tried |= found
        if order == "newest":
            yield from sorted(found, reverse=True)
        elif order is not None:
            yield from rank_by_objective(storage, found, order)


def _read_model(storage: Storage, manifest: Manifest) -> SavedModel:
    shared = read_part(storage, manifest, SHARED_FILE)
    state = shared["model"] if manifest.num_shards == 1 else _join(storage, manifest, shared)
    # Checkpoints of earlier releases have no configs.
    return SavedModel(manifest=manifest, state=state, configs=shared.get("configs", {}))


def _join(storage: Storage, manifest: Manifest, shared: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put the state of a sharded model together of its parts."""
    names = map(shard_file_name, range(manifest.num_shards))
    parts = [read_part(storage, manifest, name)["model"] for name in names]
    dimensions = shared["sharded_dimensions"]
    whole: dict[str, Any] = copy.copy(parts[0])  # a copy keeps the versions of the model's modules
    for name, dimension in dimensions.items():
        whole[name] = torch.cat([part[name] for part in parts], dimension)
    return whole


__all__ = ["SavedModel", "read_model"]
