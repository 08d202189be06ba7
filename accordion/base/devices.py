"""Copies from the host to the device of the gradients."""

from __future__ import annotations

import torch
from torch import Tensor


def copy_to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor on a device. The host does not wait for a GPU: the values go by way of
    pinned memory.
    """
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
