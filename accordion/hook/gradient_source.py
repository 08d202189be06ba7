"""Where the gradients of a step come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from accordion.hook.exchange_scheduler import ExchangeScheduler


class GradientSource(Protocol):
    """Observes the gradients of a module in every step, and hands them over to be exchanged."""

    @property
    def remove(self) -> Callable[[], Any]:
        """Function that lets go of the module, so that another session can attach to it; not to a
        DDP module, which keeps its hook for good.
        """

    @property
    def exchanges(self) -> ExchangeScheduler | None:
        """Exchanges the gradients; None if the process has no peers."""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients that a step exchanges, uncompressed."""

    @property
    def has_gradients(self) -> bool:
        """Whether there are gradients since the last step boundary.

        Raises:
            Exception: their exchange failed.
        """

    def exchange_gradients(self) -> None:
        """Exchange the gradients that a backward pass left in the parameters, where the pass itself
        does not.

        Raises:
            Exception: the exchange failed.
        """

    def take_signals(self) -> Tensor:
        """Return the step's signals, averaged over the workers, (7,), and begin the next step.

        Raises:
            HookError: there are no gradients since the last call.
            Exception: their exchange failed.
        """

    def unused_layers(self) -> list[str]:
        """Return the layers that no worker used in this step and whose gradients were left alone.

        Raises:
            HookError: other parameters are exchanged than were trainable at `attach`.
        """


class LocalGradientSource(GradientSource, Protocol):
    """Source of a module that can also train by local steps, between which nothing is exchanged."""

    is_local: bool
    """Whether each replica keeps its own gradients, which are not exchanged then."""

    @property
    def exchanges(self) -> ExchangeScheduler:
        """Exchanges the gradients."""

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Exchanged parameters by name, in the order of the model; FSDP2's are DTensors."""

    def take_local_gradients(self) -> None:
        """Begin the next step of this replica alone.

        Raises:
            HookError: there are no gradients since the last call.
        """

    def keep_own_buffers(self, *, keeps: bool) -> None:
        """Keep a forward pass from sharing buffers such as those of batch norm, or stop to."""
