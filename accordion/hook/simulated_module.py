"""Wrapper of a simulated worker's module, in place of DistributedDataParallel."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accordion.compress.lockstep import LockstepNetwork


class SimulatedDataParallel(nn.Module):
    """Module of one of several workers that one process simulates.

    All workers get the parameters and buffers of rank 0. A backward pass exchanges nothing:
    `exchange_gradients` of the session's source does.
    """

    def __init__(self, module: nn.Module, network: LockstepNetwork) -> None:
        super().__init__()
        self.module = module
        self.network = network
        for tensor in (*module.parameters(), *module.buffers()):
            network.broadcast_(tensor.detach())

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the module returns."""
        return self.module(*inputs, **named)


ParallelModule = DistributedDataParallel | SimulatedDataParallel
"""Module whose gradients are averaged over workers."""
