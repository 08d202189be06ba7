"""Buckets of DistributedDataParallel: their order, fixed for all steps, and views of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from accordion.base.errors import HookError
from accordion.compress.layer_tensors import memory_order_view


def fix_buckets(module: DistributedDataParallel) -> bool:
    """Rebuild a module's buckets now, so that they never change later; every worker calls this.

    DDP starts with one bucket and rebuilds its buckets after the first backward pass, in the order
    in which the gradients became ready. Which layers PowerSGD stacks depends on the buckets, and in
    a backend's own collectives the order of summation too: a resumed process would differ from an
    uninterrupted one in the last bits. Here the buckets follow
    the reversed order of registration, which is the order of the backward pass if layers are
    registered in the order in which they are used.

    Modules with `find_unused_parameters` are left alone because DDP never rebuilds their buckets,
    and those with `static_graph` because DDP treats their first step as a special case.

    Returns True if the buckets were rebuilt; the caller then has to register its hook again.
    """
    if module.find_unused_parameters or module.static_graph:
        return False
    ddp: Any = module  # DDP recreates its reducer by the same calls when it is unpickled
    parameters, sparse = ddp._build_params_for_reducer()
    parameters.reverse()
    sparse.reverse()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    ddp.reducer._push_all_rebuilt_params()
    ddp.reducer._rebuild_buckets()
    return True


def gradients_of(
    buffer: Tensor, parts: Sequence[Tensor], parameters: Sequence[Tensor]
) -> list[Tensor]:
    """Return one real view into a bucket's buffer for each of its parameters, in their order.

    `parts` are DDP's own views. For complex parameters DDP passes the buffer as real values, twice
    as many, but gives the offsets and sizes of the parts in complex values; such views are
    recomputed.

    Raises:
        HookError: a gradient differs from its parameter in dtype or size, or the gradients do not
            fill the buffer.
    """
    gradients = [
        _cut_gradient(buffer, part, parameter)
        for part, parameter in zip(parts, parameters, strict=True)
    ]
    covered = sum(gradient.numel() for gradient in gradients)
    if covered != buffer.numel():
        raise HookError(
            f"the gradients of a bucket hold {covered} values, but its buffer holds"
            f" {buffer.numel()}, so some would not be exchanged; the bucket layout of torch"
            f" {torch.__version__} is not supported"
        )
    return gradients


def as_real(tensor: Tensor) -> Tensor:
    """View a complex tensor as a real one whose last dimension interleaves real and imaginary
    parts.

    For a tensor that is not contiguous, they become a new last dimension of two. Real tensors are
    returned unchanged.
    """
    if not tensor.is_complex():
        return tensor
    pairs = torch.view_as_real(tensor)
    return pairs.flatten(-2) if tensor.dim() and tensor.is_contiguous() else pairs


def _cut_gradient(buffer: Tensor, part: Tensor, parameter: Tensor) -> Tensor:
    if parameter.is_complex():
        start = part.storage_offset() - buffer.storage_offset()
        whole = torch.view_as_complex(buffer.view(-1, 2))
        part = whole[start : start + parameter.numel()].view(parameter.shape)
    if part.dtype != parameter.dtype or part.numel() != parameter.numel():
        raise HookError(
            f"DDP passed a gradient of {part.numel()} values in {part.dtype} for a parameter of"
            f" {parameter.numel()} values in {parameter.dtype}; keep parameters and gradients in"
            " one dtype"
        )
    return as_real(_indexed_like(parameter, part))


def _indexed_like(parameter: Tensor, part: Tensor) -> Tensor:
    """View a part of a bucket with the parameter's indices; DDP gives it the parameter's
    strides.
    """
    if parameter.is_contiguous() or not memory_order_view(parameter).is_contiguous():
        return part
    return part.as_strided(parameter.shape, parameter.stride(), part.storage_offset())
