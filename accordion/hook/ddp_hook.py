"""DDP communication hook that averages the gradients of every bucket at the layers' levels.

DDP accepts a hook once, so levels change inside it. DDP can also rebuild its buckets after the
first step, so layers are identified by name and never by position.
"""

# No `from __future__ import annotations`: DDP compares the hook's annotations with its own types.

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from accordion.base.errors import HookError
from accordion.compress.compression_engine import Engine
from accordion.compress.exchange import GroupNetwork
from accordion.compress.executors import (
    Executor,
    InlineExecutor,
    PendingBuffer,
    StreamExecutor,
    ThreadExecutor,
    backend_name,
    create_exchange_group,
    register_exit_delay,
)
from accordion.compress.layer_stacks import Bucket, Layer
from accordion.compress.step_signals import Signal
from accordion.config import BucketsPerExchange
from accordion.hook.ddp_buckets import fix_buckets, gradients_of
from accordion.hook.exchange_plan import Plan
from accordion.hook.layers import named_layers, reduced_layers
from accordion.hook.module_checks import check_join, check_synchronized, device_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _WaitingBucket:
    """Bucket that DDP handed over."""

    future: torch.futures.Future[Tensor]
    bucket: Bucket
    ready_s: float
    """Time of the call, by `time.perf_counter`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One exchange of a step, for an observer."""

    buckets: Sequence[Bucket]
    ready_s: Sequence[float]
    """When DDP handed over each bucket, by `time.perf_counter`."""
    started_s: float
    ended_s: float
    is_last: bool
    """Whether it completed the step."""


class Hook:
    """Registers itself with a DDP module and exchanges its buckets in their order.

    Waiting in callbacks of several buckets' futures can deadlock on gloo, so collectives block: in
    a thread in parallel with the backward pass, or inside the hook with `overlap=False`.

    Args:
        module: the module to register with.
        engine: compresses the gradients.
        raised: returns the signals that this worker raises; called once per step.
        loss_scale: returns the scale of the loss, 1 without a scaler; called once per step.
        step_call: call of the loop that ends a step, for messages.
        pass_skipped_step: given a step's signals, passes the boundary of a step that the training
            loop's own scaler skipped; returns False for another step.
        overlap: whether to exchange gradients in parallel with the backward pass.
        buckets_per_exchange: number of buckets that are exchanged together; `all` exchanges all
            buckets of a step at once, and `auto` follows `exchange_plan`, which starts with single
            buckets.

    Raises:
        HookError: the module already has a hook.
    """

    on_exchange: Callable[[Exchange], None] | None = None
    """Called after each exchange, where it ran: in its thread, or inside the backward pass."""

    def __init__(
        self,
        module: DistributedDataParallel,
        engine: Engine,
        raised: Callable[[], frozenset[Signal]],
        *,
        loss_scale: Callable[[], float],
        step_call: str,
        pass_skipped_step: Callable[[Tensor], bool],
        overlap: bool,
        buckets_per_exchange: BucketsPerExchange,
    ) -> None:
        register_exit_delay()
        self._register(module)  # before the group and threads, which a refused hook would leave
        device = device_of(module)
        self.network, self._executor = _choose_executor(
            module.process_group, device, overlap=overlap
        )
        self._engine = engine
        self._raised = raised
        self._loss_scale = loss_scale
        self._step_call = step_call
        self._pass_skipped_step = pass_skipped_step
        self._names = {
            id(parameter): name for name, parameter in named_layers(module.module).items()
        }
        self._reduced = reduced_layers(module)
        self._module = weakref.ref(module)
        engine.feedback.keeps_old = module.find_unused_parameters and not module.static_graph
        self.exchange_plan: Plan = ()
        self.can_plan = (
            buckets_per_exchange == "auto"
            and self.network.world_size > 1
            and isinstance(self._executor, ThreadExecutor)
            and device.type == "cpu"
        )
        """Whether exchanges are timed and follow `exchange_plan`; the host cannot time a GPU's."""
        self._group_size = self._fixed_group_size(buckets_per_exchange)
        self._begin_pass()
        self._signals: Tensor | None = None
        """Signals of the step whose gradients were exchanged; None before the exchange."""
        self.waited_s = 0.0
        """Seconds for which training waited for exchanges, encoding included; on GPUs, only the
        host's time.
        """
        self.encoded_s = 0.0
        """Part of `waited_s` in which gradients were encoded and decoded instead of sent."""

    def _register(self, module: DistributedDataParallel) -> None:
        on_bucket = _make_comm_hook(weakref.ref(self))
        try:
            module.register_comm_hook(None, on_bucket)
        except RuntimeError as error:
            raise HookError(
                f"DDP refused the hook ({error}); a module takes one hook, attach() to a new DDP"
            ) from error
        if fix_buckets(module):
            module.register_comm_hook(None, on_bucket)  # rebuilding removed it
        # Only DDP's Python reducer needs this list, and attach() refuses it. Copies of the module
        # would hold the hook through it.
        getattr(module, "_comm_hooks", []).clear()

    @property
    def has_gradients(self) -> bool:
        """Whether gradients were exchanged since the last step boundary."""
        self._executor.raise_failure()
        return self._signals is not None

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients that a step exchanges, uncompressed."""
        return sum(parameter.nbytes for parameter in self._reduced.values())

    def remove(self) -> None:
        """Do nothing, because a DDP module keeps its hook for good."""

    def take_signals(self) -> Tensor:
        """Return the step's signals, averaged over the workers, (7,).

        Raises:
            HookError: no gradients were exchanged since the last call.
            Exception: an exchange failed during the backward pass, for example because a connection
                was lost.
        """
        self._executor.raise_failure()
        if self._signals is None:
            module = self._module()
            if module is not None:
                check_synchronized(module)
            raise HookError(
                "not all gradients were exchanged since the last step; call backward() outside"
                " no_sync() first, attach() before the first forward pass, and give"
                " DistributedDataParallel find_unused_parameters=True if layers can be unused"
            )
        signals, self._signals = self._signals, None
        return signals

    def unused_layers(self) -> list[str]:
        """Return the layers that no worker used in this step and whose gradients DDP left alone.

        Raises:
            HookError: DDP exchanges other parameters than were trainable at `attach`.
        """
        module = self._module()
        if module is None or not module.find_unused_parameters or module.static_graph:
            return []
        # DDP's own map, summed over the workers: a zero gradient does not show whether it was used.
        used = module.reducer._get_local_used_map().tolist()
        if len(used) != len(self._reduced):
            raise HookError(
                f"DDP exchanges {len(used)} parameters, but {len(self._reduced)} were trainable at"
                " attach(); freeze or unfreeze layers before the model is wrapped in"
                " DistributedDataParallel"
            )
        return [
            name
            for (name, parameter), count in zip(self._reduced.items(), used, strict=True)
            if not count and (parameter.grad is None or not module.gradient_as_bucket_view)
        ]

    def exchange_bucket(self, grad_bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Exchange a bucket of gradients, at once or with later ones; return its averages' future.

        Raises:
            HookError: the step's gradients were exchanged already, a gradient has another dtype or
                size than its parameter, or the pass runs inside `join()`.
            Exception: without overlap, the errors of the exchange.
        """
        ready_s = time.perf_counter()
        self._check_call()
        if grad_bucket.index() == 0:
            self._engine.loss_scale = self._loss_scale()
        bucket = Bucket(buffer=grad_bucket.buffer(), layers=self._layers(grad_bucket))
        is_last = self._is_last(grad_bucket, bucket.layers)
        future: torch.futures.Future[Tensor] = self._executor.create_future()
        self._waiting.append(_WaitingBucket(future=future, bucket=bucket, ready_s=ready_s))
        if is_last or len(self._waiting) == self._next_group_size():
            self._exchange_waiting(is_last=is_last)
        return future

    def _begin_pass(self) -> None:
        self._num_exchanges = 0
        """Exchanges of this backward pass that have begun."""
        self._waiting: list[_WaitingBucket] = []
        """Buckets of this backward pass whose exchange has not begun."""
        self._pending: list[PendingBuffer] = []
        """Buckets of this backward pass whose averages are not written yet."""
        self._handed_over: set[str] = set()
        """Layers of this backward pass, counted in static graphs."""

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

    def _is_last(self, bucket: GradBucket, layers: Sequence[Layer]) -> bool:
        """Return whether a bucket completes the step.

        In a static graph's first step DDP gives every bucket the index 0, so parameters are
        counted.
        """
        module = self._module()
        if module is None or not module.static_graph:
            return bool(bucket.is_last())
        names = {layer.name for layer in layers}
        if not names.isdisjoint(self._handed_over):  # an earlier backward pass was aborted
            self._begin_pass()
        self._handed_over |= names
        if len(self._handed_over) < len(self._reduced):
            return False
        self._handed_over.clear()
        return True

    def _check_call(self) -> None:
        module = self._module()
        if module is not None:
            check_join(module)
        if self._signals is not None and not self._pass_skipped_step(self._signals):
            raise HookError(
                f"gradients were exchanged twice for one step; call {self._step_call} after each"
                " backward(), and run all other forward and backward passes, whose gradients are"
                " accumulated or discarded, under no_sync()"
            )

    def _exchange(
        self, waiting: Sequence[_WaitingBucket], *, is_last: bool, since: float, sent_s: float
    ) -> None:
        """Exchange buckets that were submitted at `since`, when collectives had taken `sent_s`."""
        started_s = time.perf_counter()
        raised = self._raised if is_last else None
        buckets = [item.bucket for item in waiting]
        signals = self._engine.exchange(buckets, self.network, raised=raised)
        if is_last:
            self._signals = signals
        ended_s = time.perf_counter()
        if is_last or not self._executor.is_parallel:
            waited_s = ended_s - since
            self.waited_s += waited_s
            self.encoded_s += max(0.0, waited_s - (self.network.seconds - sent_s))
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

    def _layers(self, bucket: GradBucket) -> tuple[Layer, ...]:
        parameters = bucket.parameters()
        names = [self._names[id(parameter)] for parameter in parameters]
        gradients = gradients_of(bucket.buffer(), bucket.gradients(), parameters)
        return tuple(
            Layer(name=name, gradient=gradient)
            for name, gradient in zip(names, gradients, strict=True)
        )


def _make_comm_hook(hook: "weakref.ref[Hook]") -> Callable[..., torch.futures.Future[Tensor]]:
    """Return the function that DDP calls with each bucket.

    DDP keeps it in C++, where Python's garbage collector sees no references: if it referred to the
    hook, a model that the session's owner also holds would never be freed.
    """

    def on_bucket(state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:  # noqa: ARG001
        owner = hook()
        if owner is None:
            raise HookError(
                "the session of this module is gone, so its gradients cannot be exchanged; keep"
                " what attach() returned for as long as the module is trained"
            )
        return owner.exchange_bucket(bucket)

    return on_bucket


def _choose_executor(
    group: dist.ProcessGroup, device: Any, *, overlap: bool
) -> tuple[GroupNetwork, Executor]:
    if not overlap:
        return GroupNetwork(group, device), InlineExecutor()
    if device.type == "cuda" and backend_name(group, device) == "nccl":
        return GroupNetwork(group, device), StreamExecutor(device)
    return GroupNetwork(create_exchange_group(group), device), ThreadExecutor(device)
