"""Batches and outputs that may be one tensor, or tuples, lists and dicts of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def to_device(batch: Any, device: str) -> Any:
    """Bring all tensors of a batch to the device.

    A GPU copies from pinned memory while the processor goes on; what uses the copy waits for it by itself.
    """
    if not device.startswith("cuda"):
        return map_tensors(lambda tensor: tensor.to(device), batch)
    return map_tensors(lambda tensor: _pinned(tensor).to(device, non_blocking=True), batch)


def to_float32(outputs: Any) -> Any:
    """Cast tensors of lower precision to fp32; whole numbers and double precision stay as they are."""
    lower = (torch.bfloat16, torch.float16)
    return map_tensors(lambda tensor: tensor.float() if tensor.dtype in lower else tensor, outputs)


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Replace each tensor in nested tuples, lists and mappings; what is none of these is left as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(change, part) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(change, part) for part in value))
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(change, part) for part in value)
    return value


def _pinned(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


__all__ = ["map_tensors", "to_device", "to_float32"]
