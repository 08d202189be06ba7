"""Training data: the interface between a task and the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class Data(Protocol):
    """Samples that can be read in any order; they may be larger than memory."""

    def __len__(self) -> int:
        """Number of samples."""

    def batch(self, indices: Tensor) -> tuple[Any, Any]:
        """Return inputs and targets of these samples, on the CPU, in this order.

        `indices` is an int64 tensor with one index for each sample of a micro-batch. Each result is
        a tensor, or a tuple, list or dict of tensors. The model is called with the inputs as one
        argument; the targets go to the task's loss and metrics.

        The default generator is seeded from the job's seed, the epoch (not for held-out data) and
        the position, so augmentation may use it freely and does not depend on the number of
        workers.
        """


@dataclass(frozen=True, slots=True)
class TensorData:
    """Samples that fit in memory: row i of both tensors is sample i."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows at these indices."""
        return self.inputs[indices], self.targets[indices]


__all__ = ["Data", "TensorData"]
