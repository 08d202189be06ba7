"""Gradients inside a DDP bucket: each as a real tensor indexed like its parameter, in the bucket's own memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from accordion.errors import HookError
from accordion.feedback import by_memory


def gradients_of(buffer: Tensor, parts: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return one real view into a bucket's buffer for each of its parameters, in their order.

    `parts` are the views that DDP gives. For complex parameters DDP hands over the buffer as real numbers, twice as
    many, but leaves the offsets and sizes of the parts in complex ones; such parts are cut anew.

    Raises:
        HookError: a gradient has another dtype or size than its parameter, or the gradients do not fill the buffer.
    """
    gradients = [_gradient(buffer, part, parameter) for part, parameter in zip(parts, parameters, strict=True)]
    covered = sum(gradient.numel() for gradient in gradients)
    if covered != buffer.numel():
        raise HookError(
            f"the gradients of a bucket hold {covered} values and its buffer {buffer.numel()}, so some would not be "
            "exchanged; this version of torch cuts its buckets in a way that is not supported"
        )
    return gradients


def as_real(tensor: Tensor) -> Tensor:
    """View a complex tensor as a real one: real and imaginary parts side by side in the last dimension.

    Where the last dimension is not contiguous they get a dimension of their own. Real tensors are returned as they are.
    """
    if not tensor.is_complex():
        return tensor
    pairs = torch.view_as_real(tensor)
    return pairs.flatten(-2) if tensor.dim() and tensor.is_contiguous() else pairs


def _gradient(buffer: Tensor, part: Tensor, parameter: Tensor) -> Tensor:
    if parameter.is_complex():
        start = part.storage_offset() - buffer.storage_offset()
        whole = torch.view_as_complex(buffer.view(-1, 2))
        part = whole[start : start + parameter.numel()].view(parameter.shape)
    if part.dtype != parameter.dtype or part.numel() != parameter.numel():
        raise HookError(
            f"DDP gave a gradient of {part.numel()} values in {part.dtype} for a parameter of {parameter.numel()} in "
            f"{parameter.dtype}; keep parameters and gradients in one dtype"
        )
    return as_real(_indexed_like(parameter, part))


def _indexed_like(parameter: Tensor, part: Tensor) -> Tensor:
    """View a part of a bucket with the parameter's indices: DDP lays it out as the parameter lies in memory."""
    if parameter.is_contiguous() or not by_memory(parameter).is_contiguous():
        return part
    return part.as_strided(parameter.shape, parameter.stride(), part.storage_offset())
