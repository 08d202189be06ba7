"""The networks of a session's workers: who has the same parameters, and who shares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accordion.base.messages import LayerInfo
from accordion.compress.compression_engine import Engine
from accordion.compress.exchange import GroupNetwork
from accordion.hook.module_checks import device_of
from accordion.hook.sharded_module import (
    is_sharded,
    local_part,
    shard_group,
    sharded_parameters,
)
from accordion.hook.simulated_module import SimulatedDataParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNetworks:
    """Networks for the training thread; exchanges beside a backward pass have others."""

    replicas: GroupNetwork
    """Workers with the same parameters as this one, or with the same part of them."""
    everyone: GroupNetwork
    """All workers; the same network unless parameters are sharded."""
    shards: GroupNetwork | None = None
    """Workers that hold all parameters together; None if each has all of them."""

    @property
    def num_shards(self) -> int:
        """Number of workers that hold all parameters together."""
        return 1 if self.shards is None else self.shards.world_size

    @property
    def seconds(self) -> float:
        """Seconds spent in these networks' collectives so far."""
        networks = {id(one): one for one in (self.replicas, self.everyone, self.shards) if one}
        return sum(one.seconds for one in networks.values())


def networks_of(module: nn.Module, replicate_group: dist.ProcessGroup | None) -> WorkerNetworks:
    """Return the networks of the workers that train a module; without peers for one that is not
    wrapped.
    """
    device = device_of(module)
    if replicate_group is not None and is_sharded(module):
        return WorkerNetworks(
            replicas=GroupNetwork(replicate_group, device),
            everyone=GroupNetwork(dist.group.WORLD, device),
            shards=GroupNetwork(shard_group(module), device),
        )
    if isinstance(module, SimulatedDataParallel):
        return WorkerNetworks(replicas=module.network, everyone=module.network)
    group = module.process_group if isinstance(module, DistributedDataParallel) else None
    network = GroupNetwork(group, device)
    return WorkerNetworks(replicas=network, everyone=network)


def create_engine(
    module: nn.Module, layers: Sequence[LayerInfo], networks: WorkerNetworks, *, seed: int
) -> Engine:
    """Return the engine of a worker, for what it holds of the module's layers."""
    held = sharded_parameters(module) if is_sharded(module) else {}
    local = [
        replace(one, shape=tuple(local_part(held[one.name]).shape)) if one.name in held else one
        for one in layers
    ]
    replicas = networks.replicas
    return Engine(local, seed=seed, world_size=replicas.world_size, rank=replicas.rank)
