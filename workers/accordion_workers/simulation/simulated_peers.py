"""What simulated workers do together."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from accordion.compress.lockstep import LockstepGroup, LockstepNetwork
from accordion.hook.simulated_module import SimulatedDataParallel

_T = TypeVar("_T")


class SimulatedPeers:
    """The workers of a `LockstepGroup`, as one of them sees them."""

    def __init__(
        self, group: LockstepGroup, rank: int, device: torch.device, *, store: HashStore
    ) -> None:
        self._network = LockstepNetwork(group, rank, device)
        self.rank, self.world_size = rank, group.world_size
        self.store: Any = store

    def wrap(self, model: nn.Module, device: str) -> nn.Module:
        """Implements `Peers`."""
        del device
        return SimulatedDataParallel(model, self._network)

    def gather_objects(self, own: _T) -> list[_T]:
        """Implements `Peers`; every worker gets copies of its own."""
        gathered = self._network.group.collect(self.rank, own, list)
        return copy.deepcopy(gathered)

    def share_object(self, own: _T) -> _T:
        """Implements `Peers`."""
        shared: _T = self._network.group.collect(self.rank, own, lambda given: given[0])
        return shared if self.rank == 0 else copy.deepcopy(shared)

    def sum_(self, tensor: Tensor) -> None:
        """Implements `Peers`."""
        self._network.sum_(tensor)

    def broadcast_(self, tensor: Tensor) -> None:
        """Implements `Peers`."""
        self._network.broadcast_(tensor)
