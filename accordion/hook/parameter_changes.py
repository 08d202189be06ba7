"""Changes of a module's parameters since all workers had the same, as buckets to be exchanged.

An exchange may run beside further steps of each worker. Let x be the parameters that all workers
shared, p those of one worker when it handed over d = p - x, and q its parameters when the mean of d
has arrived. Then x becomes x' = x + mean d, or what an outer step makes of the mean, and the worker
goes on from x' + (q - p). Its own steps since, q - p, are in its next change, which is against x'.
So the changes of a worker add up to its steps, each of which counts once; and without steps since,
q = p, all workers have x'. Streaming DiLoCo (arXiv:2501.18512) overlaps steps and exchange too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from accordion.base.errors import HookError, StateError
from accordion.compress.layer_stacks import Bucket, Layer
from accordion.hook.ddp_buckets import as_real
from accordion.hook.exchange_scheduler import ExchangeScheduler

BUCKET_BYTES = 25 << 20
"""Size from which the next parameter begins a new bucket, as in DDP."""
POLL_S = 0.0002
"""Seconds between two looks whether an exchange has ended."""
MOMENTUM, OUTER_RATE = 0.9, 0.7
"""Nesterov momentum and learning rate of the outer step, as in DiLoCo (arXiv:2311.08105)."""


class ParameterChanges:
    """Source of buckets that hold by how much each parameter changed on this worker.

    Args:
        parameters: trainable parameters by name, in the order of the model, as far as this worker
            holds them; equal on all replicas.
        exchanges: averages the changes over the workers.
        nesterov: whether the mean change is a gradient for SGD with Nesterov momentum; otherwise it
            is added to the parameters.
        overlaps: whether workers take steps during an exchange, which takes a copy of the
            parameters more.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        exchanges: ExchangeScheduler,
        *,
        nesterov: bool,
        overlaps: bool,
    ) -> None:
        self._exchanges = exchanges
        self._nesterov = nesterov
        groups = list(group_parameters(parameters))
        self._buckets = [_ChangedBucket(group, overlaps=overlaps) for group in groups]
        self._futures: list[torch.futures.Future[Tensor]] = []
        self._unobserved = ExitStack()
        """Holds what the running exchange has changed of the scheduler."""

    def begin(self) -> None:
        """Remember the parameters as they are, which all workers share."""
        for bucket in self._buckets:
            bucket.remember()

    def start_exchange(self) -> None:
        """Begin to average the changes over the workers; `end_exchange` follows.

        The parameters stay as they are until `apply` or `undo`.

        Raises:
            Exception: the exchange failed.
        """
        last = self._buckets[-1]
        self._unobserved.enter_context(self._exchanges.unobserved())
        with self._exchanges.waiting():
            self._futures = [
                self._exchanges.hand_over(
                    bucket.subtract(), ready_s=time.perf_counter(), is_last=bucket is last
                )
                for bucket in self._buckets
            ]

    def wait(self) -> None:
        """Wait for the averages of the changes.

        Raises:
            Exception: the exchange failed.
        """
        with self._exchanges.waiting():
            # Where an exchange failed in its thread, its future never ends.
            while not self._futures[-1].done():
                self._exchanges.raise_failure()
                time.sleep(POLL_S)
        for future in self._futures:
            future.wait()

    def end_exchange(self) -> Tensor:
        """Wait for the averages of the changes; return the step's signals, (7,).

        Raises:
            Exception: the exchange failed.
        """
        with self._unobserved:
            self.wait()
        signals = self._exchanges.take_signals()
        if signals is None:
            raise HookError("the exchange of parameters ended without signals")
        return signals

    def apply(self) -> None:
        """Take the outer step with the averages; the steps since `start_exchange` stay."""
        for bucket in self._buckets:
            bucket.apply(nesterov=self._nesterov)

    def undo(self) -> None:
        """Go back to the parameters before the round, without an outer step, and without the steps
        since.
        """
        for bucket in self._buckets:
            bucket.restore()

    def momentum(self) -> list[Tensor]:
        """Return a copy of the outer step's momentum on the CPU, empty without one."""
        values = (bucket.momentum for bucket in self._buckets)
        return [value.to("cpu", copy=True) for value in values if value is not None]

    def check_momentum(self, saved: object) -> None:
        """Check that a saved momentum is of these parameters, or empty.

        Raises:
            StateError: it is not.
        """
        if not self._nesterov or not saved:
            return
        given = saved if isinstance(saved, Sequence) else ()
        found = [one.numel() for one in given if isinstance(one, Tensor)]
        sizes = [bucket.start.numel() for bucket in self._buckets]
        if found != sizes:
            raise StateError(
                f"saved momentum of local steps has buckets of {found} values, and the trainable"
                f" parameters of this model fill {sizes}; load it into the model it was saved from,"
                " with the same layers frozen"
            )

    def load_momentum(self, saved: Sequence[Tensor]) -> None:
        """Continue with a saved momentum; an empty one starts from zero. Outer steps without one
        leave it out.
        """
        given = saved if self._nesterov else ()
        values: Sequence[Tensor | None] = given or [None] * len(self._buckets)
        for bucket, value in zip(self._buckets, values, strict=True):
            bucket.momentum = None if value is None else value.to(bucket.start, copy=True)


class _ChangedBucket:
    """Parameters of one dtype, and a flat buffer for their changes."""

    def __init__(self, parameters: Mapping[str, Tensor], *, overlaps: bool) -> None:
        self._parameters = {name: as_real(one.detach()) for name, one in parameters.items()}
        first = next(iter(self._parameters.values()))
        size = sum(one.numel() for one in self._parameters.values())
        self.start = torch.empty(size, dtype=first.dtype, device=first.device)
        self._changes = torch.empty_like(self.start)
        self._ends = torch.empty_like(self.start) if overlaps else None
        """Parameters whose changes are exchanged; None if they stay as they are meanwhile."""
        self.momentum: Tensor | None = None

    def remember(self) -> None:
        for parameter, part in self._parts(self.start):
            part.copy_(parameter)

    def restore(self) -> None:
        for parameter, part in self._parts(self.start):
            parameter.copy_(part)

    def subtract(self) -> Bucket:
        for (parameter, part), (_, start) in zip(
            self._parts(self._changes), self._parts(self.start), strict=True
        ):
            torch.sub(parameter, start, out=part)
        if self._ends is not None:
            for parameter, part in self._parts(self._ends):
                part.copy_(parameter)
        layers = (
            Layer(name=name, gradient=part)
            for name, (_, part) in zip(self._parameters, self._parts(self._changes), strict=True)
            if part.numel()  # a worker may hold no value of a small sharded layer
        )
        return Bucket(buffer=self._changes, layers=tuple(layers))

    def apply(self, *, nesterov: bool) -> None:
        if nesterov:
            if self.momentum is None:
                self.momentum = torch.zeros_like(self.start)
            self.momentum.mul_(MOMENTUM).add_(self._changes)
            self._changes.add_(self.momentum, alpha=MOMENTUM).mul_(OUTER_RATE)
        self.start.add_(self._changes)
        if self._ends is None:
            self.restore()
            return
        for (parameter, end), (_, start) in zip(
            self._parts(self._ends), self._parts(self.start), strict=True
        ):
            parameter.sub_(end).add_(start)

    def _parts(self, buffer: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Return each parameter with its part of a buffer, of its shape."""
        parameters = self._parameters.values()
        parts = torch.split(buffer, [one.numel() for one in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            yield parameter, part.view(parameter.shape)


def group_parameters(parameters: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Cut parameters into buckets of one dtype, in the reverse order of the model, as DDP does."""
    group: dict[str, Tensor] = {}
    for name, parameter in reversed(list(parameters.items())):
        first = next(iter(group.values()), parameter)
        size = sum(one.nbytes for one in group.values())
        if group and (parameter.dtype != first.dtype or size >= BUCKET_BYTES):
            yield group
            group = {}
        group[name] = parameter
    if group:
        yield group
