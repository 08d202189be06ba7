"""When the buckets of a step are exchanged: alone or together, and beside which other work.

A gradient source hands over one bucket after another. What a step's last exchange brings along, the
signals of all workers, waits here for the step's boundary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from accordion.compress.compression_engine import Engine
from accordion.compress.exchange import GroupNetwork
from accordion.compress.executors import Executor, PendingBuffer
from accordion.compress.layer_stacks import Bucket
from accordion.compress.step_signals import Signal
from accordion.config import BucketsPerExchange
from accordion.hook.exchange_plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _WaitingBucket:
    """Bucket that was handed over."""

    future: torch.futures.Future[Tensor]
    bucket: Bucket
    ready_s: float
    """Time of the call, by `time.perf_counter`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One exchange of a step, for an observer."""

    buckets: Sequence[Bucket]
    ready_s: Sequence[float]
    """When each bucket was handed over, by `time.perf_counter`."""
    started_s: float
    ended_s: float
    is_last: bool
    """Whether it completed the step."""


class ExchangeScheduler:
    """Exchanges the buckets of each step in their order.

    Waiting in callbacks of several buckets' futures can deadlock on gloo, so collectives block: in
    a thread in parallel with the backward pass, or inside `hand_over`.

    Args:
        engine: compresses the gradients.
        network: connects the workers.
        executor: runs the exchanges.
        raised: returns the signals that this worker raises; called once per step.
        buckets_per_exchange: number of buckets that are exchanged together; `all` exchanges all
            buckets of a step at once, and `auto` follows `exchange_plan`, which starts with single
            buckets.
    """

    on_exchange: Callable[[Exchange], None] | None = None
    """Called after each exchange, where it ran: in its thread, or inside the backward pass."""

    def __init__(
        self,
        engine: Engine,
        network: GroupNetwork,
        executor: Executor,
        *,
        raised: Callable[[], frozenset[Signal]],
        buckets_per_exchange: BucketsPerExchange,
    ) -> None:
        self.network, self._executor = network, executor
        self._engine = engine
        self._raised = raised
        self.exchange_plan: Plan = ()
        self.can_plan = (
            buckets_per_exchange == "auto" and network.world_size > 1 and executor.can_be_timed
        )
        """Whether exchanges are timed and follow `exchange_plan`; the host cannot time a GPU's."""
        self._group_size = self._fixed_group_size(buckets_per_exchange)
        self._counts_waits = True
        """Whether training waits for the last exchange of a step, or for each if none is
        parallel.
        """
        self.begin_pass()
        self.signals: Tensor | None = None
        """Signals of the step whose buckets were exchanged; None before the exchange."""
        self.waited_s = 0.0
        """Seconds for which training waited for exchanges, encoding included; on GPUs, only the
        host's time.
        """
        self.encoded_s = 0.0
        """Part of `waited_s` in which gradients were encoded and decoded instead of sent."""

    def raise_failure(self) -> None:
        """Raise the error of an exchange that failed in its thread.

        Raises:
            Exception: for example because a connection was lost.
        """
        self._executor.raise_failure()

    def take_signals(self) -> Tensor | None:
        """Return the step's signals, (7,), averaged over the workers, and begin the next step; None
        if not all buckets of the step were exchanged.

        Raises:
            Exception: as `raise_failure`.
        """
        self.raise_failure()
        signals, self.signals = self.signals, None
        return signals

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Exchange in the block without a word to observers, whose plans are for gradients; only
        the time in `waiting` counts as waited.
        """
        observers = self.on_exchange, self.network.on_collective
        self.on_exchange = self.network.on_collective = None
        self._counts_waits = False
        try:
            yield
        finally:
            self.on_exchange, self.network.on_collective = observers
            self._counts_waits = True

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block as one for which training waited for exchanges."""
        since, sent_s = time.perf_counter(), self.network.seconds_until_now()
        yield
        self._count_wait(time.perf_counter() - since, self.network.seconds_until_now() - sent_s)

    def begin_pass(self) -> None:
        """Forget buckets of a step that was given up before its last one."""
        self._num_exchanges = 0
        """Exchanges of this step that have begun."""
        self._waiting: list[_WaitingBucket] = []
        """Buckets of this step whose exchange has not begun."""
        self._pending: list[PendingBuffer] = []
        """Buckets of this step whose averages are not written yet."""

    def hand_over(
        self, bucket: Bucket, *, ready_s: float, is_last: bool
    ) -> torch.futures.Future[Tensor]:
        """Exchange a bucket, at once or with later ones; return the future of its averages.

        Args:
            bucket: the bucket, into which the averages are written.
            ready_s: when its gradients were complete, by `time.perf_counter`.
            is_last: whether it is the last one of the step.

        Raises:
            Exception: if the executor is not parallel, the errors of the exchange.
        """
        future: torch.futures.Future[Tensor] = self._executor.create_future()
        self._waiting.append(_WaitingBucket(future=future, bucket=bucket, ready_s=ready_s))
        if is_last or len(self._waiting) == self._next_group_size():
            self._exchange_waiting(is_last=is_last)
        return future

    def _fixed_group_size(self, buckets_per_exchange: BucketsPerExchange) -> int | None:
        """Return the number of buckets per exchange without a plan; None for all of a step."""
        if buckets_per_exchange == "auto":
            # Exchanges inside the backward pass hide nothing, so they may as well be one.
            return 1 if self._executor.is_parallel else None
        return None if buckets_per_exchange == "all" else buckets_per_exchange

    def _next_group_size(self) -> int | None:
        if self.can_plan and self._num_exchanges < len(self.exchange_plan):
            return self.exchange_plan[self._num_exchanges]
        return self._group_size

    def _exchange_waiting(self, *, is_last: bool) -> None:
        waiting, self._waiting = self._waiting, []
        self._num_exchanges = 0 if is_last else self._num_exchanges + 1
        exchange = partial(
            self._exchange,
            waiting,
            is_last=is_last,
            since=time.perf_counter(),
            sent_s=self.network.seconds_until_now(),
        )
        self._pending += [(item.future, item.bucket.buffer) for item in waiting]
        # The last exchange of a step writes the averages into all buckets.
        pending, self._pending = (self._pending, []) if is_last else ([], self._pending)
        self._executor.submit(exchange, pending)

    def _exchange(
        self, waiting: Sequence[_WaitingBucket], *, is_last: bool, since: float, sent_s: float
    ) -> None:
        """Exchange buckets that were submitted at `since`, when collectives had taken `sent_s`."""
        started_s = time.perf_counter()
        raised = self._raised if is_last else None
        buckets = [item.bucket for item in waiting]
        signals = self._engine.exchange(buckets, self.network, raised=raised)
        if is_last:
            self.signals = signals
        ended_s = time.perf_counter()
        if self._counts_waits and (is_last or not self._executor.is_parallel):
            self._count_wait(ended_s - since, self.network.seconds - sent_s)
        if self.on_exchange is not None:
            self.on_exchange(
                Exchange(
                    buckets=buckets,
                    ready_s=[item.ready_s for item in waiting],
                    started_s=started_s,
                    ended_s=ended_s,
                    is_last=is_last,
                )
            )

    def _count_wait(self, waited_s: float, sending_s: float) -> None:
        self.waited_s += waited_s
        self.encoded_s += max(0.0, waited_s - sending_s)
