"""The model in a checkpoint of a job, read without the rest of its state."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accordion_workers.checkpoint.async_save import SHARED_FILE, shard_file_name
from accordion_workers.checkpoint.checkpoint_files import Manifest, read_manifest, read_part
from accordion_workers.checkpoint.storage import Storage
from accordion_workers.common.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModel:
    """A model of a checkpoint."""

    manifest: Manifest
    state: Mapping[str, Any]
    """Its `state_dict`, on the CPU."""
    configs: Mapping[str, str]
    """Files of a model of Transformers by name (`training/pretrained.py`), else empty."""


def read_model(storage: Storage, names: Sequence[str], *, job_id: str) -> SavedModel:
    """Return the model of the first of these checkpoints that is complete.

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
    for name in names:
        if name not in existing:
            continue
        try:
            manifest = read_manifest(storage, name, job_id)
            return _read_model(storage, manifest)
        except CheckpointError:
            reason = f"{name} is incomplete or damaged"
    raise CheckpointError(f"nothing can be read of {shown} in {storage}: {reason}")


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
