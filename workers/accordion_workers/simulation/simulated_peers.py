"""What simulated workers do together."""

from __future__ import annotations

import copy
from collections.abc import Sequence
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
        return copy.deepcopy(self._network.group.collect(self.rank, own, _copy_all))

    def share_object(self, own: _T) -> _T:
        """Implements `Peers`; every worker gets a copy of its own."""
        return self.gather_objects(own)[0]

    def sum_(self, tensor: Tensor) -> None:
        """Implements `Peers`."""
        self._network.sum_(tensor)

    def broadcast_(self, tensor: Tensor) -> None:
        """Implements `Peers`."""
        self._network.broadcast_(tensor)


def _copy_all(given: Sequence[_T]) -> list[_T]:
    """Return copies: the worker that goes on first may change its object before others read it."""
    return copy.deepcopy(list(given))
