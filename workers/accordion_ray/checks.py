"""Checks of model and settings before `attach` registers anything."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from accordion.config import Config
from accordion_ray.errors import AttachError


def check_model(model: object, *, world_size: int, has_replicas: bool = False) -> None:
    """Check that `prepare_model` has wrapped the model for data-parallel training, or FSDP2 has
    sharded it.

    A single worker's model is not wrapped by `prepare_model` and need not be. `has_replicas` tells
    that `attach` got the group of a sharded model's replicas, which `accordion.attach` checks.

    Raises:
        AttachError: FSDP1 shards the model, or FSDP2 does and its replicas are not known, or it is
            not wrapped although there are other workers.
    """
    parts = tuple(model.modules()) if isinstance(model, nn.Module) else ()
    if any(isinstance(part, FullyShardedDataParallel) for part in parts):
        raise AttachError(
            "attach() got a model that FSDP1 shards, whose gradients cannot be compressed. Call "
            'prepare_model(model) without parallel_strategy="fsdp", or shard it by FSDP2'
        )
    if any(isinstance(part, FSDPModule) for part in parts):
        if has_replicas:
            return
        raise AttachError(
            "attach() got a model that FSDP2 shards, and no group of its replicas, between which "
            "gradients are compressed; make a mesh with a dimension for them, and give attach() "
            'replicate_group=mesh["replicate"].get_group()'
        )
    inner = getattr(model, "_orig_mod", model)  # accordion.attach refuses a compiled model itself
    if world_size > 1 and not isinstance(inner, DistributedDataParallel):
        raise AttachError(
            f"attach() got a {type(model).__name__} on {world_size} workers; call "
            "model = ray.train.torch.prepare_model(model) first and pass its result"
        )


def check_name(name: str, attached: Collection[str]) -> None:
    """Check that no other session of a training function has the name.

    Raises:
        AttachError: one has.
    """
    if name in attached:
        raise AttachError(
            f"this training function has attached a session of the name {name!r} already, and both"
            " would have the same files and guest run; give each model its own name="
        )


def check_config(config: Config, steps_per_epoch: int | None, *, global_batch: int = 0) -> None:
    """Check settings that an unchanged training loop could not follow.

    Raises:
        AttachError: a setting does not fit.
    """
    if config.batch is not None:
        raise AttachError(
            f"Config(batch=...) changes the global batch between {config.batch.low} and "
            f"{config.batch.high} samples, which an unchanged loop does not follow; leave it out"
        )
    if global_batch < 0:
        raise AttachError(
            f"global_batch is {global_batch}; give the samples a step over all workers, or leave it"
            " out if it is not known"
        )
    if steps_per_epoch is not None and steps_per_epoch < 1:
        raise AttachError(
            f"steps_per_epoch is {steps_per_epoch}; give a whole number from 1 on, such as "
            "len(train_loader), or leave it out to follow ray.train.report"
        )
