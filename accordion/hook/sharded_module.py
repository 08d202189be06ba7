"""Modules of FSDP2 (`fully_shard`), whose workers hold a part of each parameter.

The workers form a grid: those of a row, for example of one machine, hold a whole model together,
and FSDP averages their gradients part by part; those of a column, the replicate group, hold the
same part, and a session averages what they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from accordion.base.errors import HookError
from accordion.config import format_layers
from accordion.hook.layers import named_layers

_WAY_OUT = (
    "make a mesh = init_device_mesh(device, (replicas, shards),"
    ' mesh_dim_names=("replicate", "shard")), call fully_shard(module, mesh=mesh["shard"]), and'
    ' give attach() replicate_group=mesh["replicate"].get_group()'
)


_FSDP2 = "torch.distributed.fsdp._fully_shard"
"""Package of the classes that `fully_shard` gives modules. It is not imported here: with DTensor it
takes half a second, and most scripts need neither.
"""


def has_class_of(module: nn.Module, package: str) -> bool:
    """Return whether a class of the module is defined in a package, which need not be imported."""
    return any(kind.__module__.startswith(package) for kind in type(module).__mro__)


def is_sharded(module: nn.Module) -> bool:
    """Return whether FSDP2 shards parameters of the module."""
    return any(has_class_of(part, _FSDP2) for part in module.modules())


def sharded_parameters(module: nn.Module) -> dict[str, Any]:
    """Return the parameters that FSDP2 shards, which are DTensors, by name."""
    layers = named_layers(module).items()
    return {name: one for name, one in layers if hasattr(one, "device_mesh")}


def local_part(tensor: Any) -> Tensor:
    """Return what this worker holds of a tensor: its part if FSDP2 shards it, else all of it."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "device_mesh") else tensor
    return part


def units_of(module: nn.Module) -> list[tuple[str, ...]]:
    """Return the names of trainable parameters by call of `fully_shard`, whose gradients become
    complete together.
    """
    owners: dict[int, int] = {}
    for number, part in enumerate(module.modules()):  # a module comes before those inside it
        if has_class_of(part, _FSDP2):
            owners |= {id(one): number for one in part.parameters()}
    units: dict[int, list[str]] = {}
    for name, one in sharded_parameters(module).items():
        if one.requires_grad:
            units.setdefault(owners[id(one)], []).append(name)
    return [tuple(names) for names in units.values()]


def runs_backward(module: nn.Module) -> bool:
    """Return whether a backward pass runs in which FSDP2 has not completed all gradients."""
    parts: list[Any] = [part for part in module.modules() if has_class_of(part, _FSDP2)]
    # torch has no public name for this state.
    shared = [part._get_fsdp_state()._state_ctx for part in parts]
    return any(one.post_backward_final_callback_queued for one in shared)


def shard_group(module: nn.Module) -> dist.ProcessGroup:
    """Return the group of workers that hold the parameters together."""
    one = next(iter(sharded_parameters(module).values()))
    group: dist.ProcessGroup = one.device_mesh.get_group()
    return group


def check_sharded(module: nn.Module, replicate_group: dist.ProcessGroup | None) -> None:
    """Check that a sharded module and the group of its replicas fit each other.

    Raises:
        HookError: they do not on some worker; raised on all, and the message says what to change.
    """
    if replicate_group is None and not is_sharded(module):
        return
    mistakes = _mistakes(module, replicate_group)
    own = next((sentence for condition, sentence in mistakes if condition), None)
    told: list[str | None] = [own]
    if is_sharded(module):
        told = [None] * dist.get_world_size()
        dist.all_gather_object(told, own)
    for rank, sentence in enumerate(told):
        if sentence is not None:
            raise HookError(own or f"rank {rank}: {sentence}")


def _mistakes(
    module: nn.Module, replicate_group: dist.ProcessGroup | None
) -> Iterator[tuple[bool, str]]:
    yield (
        not is_sharded(module),
        "attach() got a replicate_group and a module that is not sharded; call fully_shard() on it"
        " first, or leave replicate_group out",
    )
    yield (
        replicate_group is None,
        "attach() got a model that FSDP2 shards, and no group of the workers that hold the same"
        f" part of it, between which gradients are compressed; {_WAY_OUT}",
    )
    held = sharded_parameters(module)
    whole = [name for name, one in named_layers(module).items() if one.requires_grad]
    whole = [name for name in whole if name not in held]
    yield (
        bool(whole),
        f"the layers {format_layers(whole)} train and are not sharded, so their gradients would not"
        " be averaged; call fully_shard() on the whole model, without ignored_params, and if a"
        " forward pass left parts unsharded, call reshard() on them or attach() before it",
    )
    meshes = {one.device_mesh for one in held.values()}
    yield (
        len(meshes) > 1 or any(one.ndim > 1 for one in meshes),
        f"attach() got a model sharded over {_describe(meshes)}, where FSDP2 itself averages"
        f" gradients between replicas; {_WAY_OUT}",
    )
    is_member = isinstance(replicate_group, dist.ProcessGroup)
    yield (
        not is_member,
        f"attach() got a replicate_group to which this worker does not belong; {_WAY_OUT}",
    )
    if replicate_group is not None:
        yield from _mistakes_of_groups(shard_group(module), replicate_group)


def _mistakes_of_groups(
    shards: dist.ProcessGroup, replicas: dist.ProcessGroup
) -> Iterator[tuple[bool, str]]:
    ranks, same = range(dist.get_world_size()), dist.get_process_group_ranks(replicas)
    rows = [list(ranks[start : start + shards.size()]) for start in ranks[:: shards.size()]]
    yield (
        dist.get_process_group_ranks(shards) not in rows
        or same != list(ranks[shards.rank() :: shards.size()]),
        f"the {len(ranks)} workers are no grid of {replicas.size()} replicas of {shards.size()}"
        f" shards: this worker has the same part of the model as ranks {same}, and holds it"
        f" together with ranks {dist.get_process_group_ranks(shards)}; {_WAY_OUT}",
    )


def _describe(meshes: set[object]) -> str:
    return "several meshes" if len(meshes) > 1 else "a mesh of several dimensions"
