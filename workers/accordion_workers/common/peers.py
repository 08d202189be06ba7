"""What the workers of a group do together beside the exchange of gradients."""

from __future__ import annotations

import warnings
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_T = TypeVar("_T")


class Peers(Protocol):
    """The workers of a group, as one of them sees them; all make the same calls in the same
    order.
    """

    @property
    def rank(self) -> int:
        """Rank of this worker."""

    @property
    def world_size(self) -> int:
        """Number of workers."""

    @property
    def store(self) -> Any:
        """Key-value store that the workers share, a `torch.distributed.Store`."""

    def wrap(self, model: nn.Module, device: str) -> nn.Module:
        """Return the model in a module that averages gradients over the workers; they all get rank
        0's parameters.
        """

    def gather_objects(self, own: _T) -> list[_T]:
        """Return the objects of all workers, in rank order."""

    def share_object(self, own: _T) -> _T:
        """Return rank 0's object."""

    def sum_(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the workers."""

    def broadcast_(self, tensor: Tensor) -> None:
        """Replace a tensor by rank 0's, of equal size and dtype."""


class GroupPeers:
    """The workers of the default process group."""

    @property
    def rank(self) -> int:
        """Implements `Peers`."""
        return dist.get_rank()

    @property
    def world_size(self) -> int:
        """Implements `Peers`."""
        return dist.get_world_size()

    @property
    def store(self) -> Any:
        """Implements `Peers`; every backend has one."""
        return dist.distributed_c10d._get_default_store()

    def wrap(self, model: nn.Module, device: str) -> nn.Module:
        """Implements `Peers`."""
        places: dict[str, Any] = (
            {"device_ids": [torch.device(device)]} if device.startswith("cuda") else {}
        )
        with warnings.catch_warnings():
            # The replacement that the warning names is missing from the oldest supported torch.
            warnings.simplefilter("ignore", FutureWarning)
            # Broadcasting would send all buffers in every forward pass, without the ledger.
            return DistributedDataParallel(model, broadcast_buffers=False, **places)

    def gather_objects(self, own: _T) -> list[_T]:
        """Implements `Peers`."""
        gathered = [own] * self.world_size
        dist.all_gather_object(gathered, own)
        return gathered

    def share_object(self, own: _T) -> _T:
        """Implements `Peers`."""
        shared = [own]
        dist.broadcast_object_list(shared, src=0)
        return shared[0]

    def sum_(self, tensor: Tensor) -> None:
        """Implements `Peers`."""
        dist.all_reduce(tensor)

    def broadcast_(self, tensor: Tensor) -> None:
        """Implements `Peers`."""
        dist.broadcast(tensor, src=0)
