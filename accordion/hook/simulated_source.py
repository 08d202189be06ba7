"""Gradients of a simulated worker's module, exchanged when the training loop says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    _DEFAULT_FIRST_BUCKET_BYTES,
    _compute_bucket_assignment_by_size,
)

from accordion.base.errors import HookError
from accordion.compress.compression_engine import Engine
from accordion.compress.layer_stacks import Bucket, Layer
from accordion.hook.ddp_buckets import as_real
from accordion.hook.exchange_scheduler import ExchangeScheduler
from accordion.hook.layers import named_layers
from accordion.hook.simulated_module import SimulatedDataParallel

BUCKET_BYTES = (_DEFAULT_FIRST_BUCKET_BYTES, 25 << 20)
"""Sizes of DDP's first bucket and of the others."""


class SimulatedSource:
    """Copies gradients into buckets like DDP's, so that compression does the same with them, and
    the averages back.

    Args:
        module: whose gradients are exchanged.
        engine: compresses them.
        exchanges: exchanges buckets.
        loss_scale: returns the scale of the loss, 1 without a scaler; called once per step.
    """

    def __init__(
        self,
        module: SimulatedDataParallel,
        engine: Engine,
        exchanges: ExchangeScheduler,
        *,
        loss_scale: Callable[[], float],
    ) -> None:
        self.exchanges = exchanges
        self._engine, self._loss_scale = engine, loss_scale
        self.parameters = {
            name: one for name, one in named_layers(module.module).items() if one.requires_grad
        }
        """Exchanged parameters by name, in the order of the model."""
        self._buckets = [_GradientBucket(part) for part in _divide(self.parameters)]
        self.is_local = False
        """Whether each worker keeps its own gradients, which are not exchanged then."""

    @property
    def has_gradients(self) -> bool:
        """Whether gradients were exchanged since the last step boundary, or kept."""
        kept = (one.grad is not None for one in self.parameters.values())
        return any(kept) if self.is_local else self.exchanges.signals is not None

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients that a step exchanges, uncompressed."""
        return sum(parameter.nbytes for parameter in self.parameters.values())

    def remove(self) -> None:
        """Do nothing: no hook holds the module."""

    def exchange_gradients(self) -> None:
        """Replace the gradients by their averages over the workers; while `is_local`, keep them.

        Raises:
            HookError: a parameter has no gradient.
        """
        if self.is_local or self.exchanges.signals is not None:
            return
        self._engine.loss_scale = self._loss_scale()
        filled = [bucket.fill() for bucket in self._buckets]
        for bucket in filled:
            self.exchanges.hand_over(
                bucket, ready_s=time.perf_counter(), is_last=bucket is filled[-1]
            )
        for gradients in self._buckets:
            gradients.write_back()

    def take_signals(self) -> Tensor:
        """Return the step's signals, averaged over the workers, (7,), and begin the next step.

        Raises:
            HookError: a parameter has no gradient.
        """
        self.exchange_gradients()
        signals = self.exchanges.take_signals()
        if signals is None:
            raise HookError("an exchange of simulated workers ended without signals")
        return signals

    def take_local_gradients(self) -> None:
        """Begin the next step of this worker alone.

        Raises:
            HookError: there are no gradients since the last call.
        """
        if not self.has_gradients:
            raise HookError("there was no backward pass since the last step")

    def keep_own_buffers(self, *, keeps: bool) -> None:
        """Do nothing: no forward pass shares buffers."""

    def unused_layers(self) -> list[str]:
        """Return no layers: every parameter has a gradient."""
        return []


class _GradientBucket:
    """Parameters of one dtype, and a flat buffer for their gradients."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        first = next(iter(parameters.values()))
        sizes = [one.numel() for one in parameters.values()]
        self._buffer = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        self._parts = [
            part.view(one.shape)
            for part, one in zip(torch.split(self._buffer, sizes), parameters.values(), strict=True)
        ]

    def fill(self) -> Bucket:
        """Copy the gradients into the buffer.

        Raises:
            HookError: a parameter has no gradient.
        """
        for (name, parameter), part in zip(self._parameters.items(), self._parts, strict=True):
            if parameter.grad is None:
                raise HookError(
                    f"layer {name!r} got no gradient; a simulation, like DistributedDataParallel"
                    " without find_unused_parameters, needs one for every layer in every step"
                )
            part.copy_(parameter.grad)
        buffer = as_real(self._buffer)
        layers = (
            Layer(name=name, gradient=as_real(part))
            for name, part in zip(self._parameters, self._parts, strict=True)
        )
        return Bucket(buffer=buffer, layers=tuple(layers))

    def write_back(self) -> None:
        """Copy the averages into the gradients."""
        for parameter, part in zip(self._parameters.values(), self._parts, strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(part)


def _divide(parameters: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Divide parameters into buckets as DDP does after its first step."""
    names: Sequence[str] = list(parameters)[::-1]
    indices, _ = _compute_bucket_assignment_by_size(
        [parameters[name] for name in names], list(BUCKET_BYTES)
    )
    for bucket in indices:
        yield {names[index]: parameters[names[index]] for index in bucket}
