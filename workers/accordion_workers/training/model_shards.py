"""Models of tasks that several workers hold together, by FSDP2."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def shard_model(model: nn.Module, shards: DeviceMesh) -> None:
    """Shard a model over the workers of a mesh, block by block: each module in an outermost
    `ModuleList` or `Sequential` is gathered by itself, and what is left, together, with modules
    that share parameters with others.
    """
    for block in dict.fromkeys(_list_blocks(model)):  # two lists may have the same module
        if _is_apart(block, model):
            fully_shard(block, mesh=shards)
    fully_shard(model, mesh=shards)


def _list_blocks(module: nn.Module) -> Iterator[nn.Module]:
    is_list = isinstance(module, nn.ModuleList | nn.Sequential)
    for child in module.children():
        # A list has no forward pass of its own, in which its parameters would be gathered.
        if not is_list or isinstance(child, nn.ModuleList):
            yield from _list_blocks(child)
        elif any(True for _ in child.parameters()):
            yield child


def _is_apart(block: nn.Module, model: nn.Module) -> bool:
    """Return whether no module outside a block has parameters or modules of it."""
    others = model.named_modules(memo={block})
    outside = {one for _, part in others for one in part.parameters(recurse=False)}
    return outside.isdisjoint(block.parameters())


__all__ = ["shard_model"]
