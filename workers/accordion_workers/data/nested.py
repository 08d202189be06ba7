"""Maps over the tensors of batches and outputs: one tensor, or nested tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def to_device(batch: Any, device: str) -> Any:
    """Copy all tensors of a batch to the device.

    To a GPU the copy is asynchronous, from pinned memory; kernels that use it are ordered after it.
    """
    if not device.startswith("cuda"):
        return map_tensors(lambda tensor: tensor.to(device), batch)
    return map_tensors(lambda tensor: _pin_memory(tensor).to(device, non_blocking=True), batch)


def to_float32(outputs: Any) -> Any:
    """Cast tensors of lower precision to fp32; integers and fp64 stay as they are."""
    lower = (torch.bfloat16, torch.float16)
    return map_tensors(lambda tensor: tensor.float() if tensor.dtype in lower else tensor, outputs)


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Replace each tensor in nested tuples, lists and mappings; leave other values as they are."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(change, part) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(change, part) for part in value))
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(change, part) for part in value)
    return value


def _pin_memory(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


__all__ = ["map_tensors", "to_device", "to_float32"]
