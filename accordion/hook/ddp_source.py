"""Gradients of a DistributedDataParallel module, whose communication hook gets every bucket.

DDP accepts a hook once, so levels change inside it. DDP can also rebuild its buckets after the
first step, so layers are identified by name and never by position.
"""

# No `from __future__ import annotations`: DDP compares the hook's annotations with its own types.

import time
import weakref
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from accordion.base.errors import HookError
from accordion.compress.compression_engine import Engine
from accordion.compress.layer_stacks import Bucket, Layer
from accordion.hook.ddp_buckets import fix_buckets, gradients_of
from accordion.hook.exchange_scheduler import ExchangeScheduler
from accordion.hook.layers import named_layers, reduced_layers
from accordion.hook.module_checks import check_join, check_synchronized

_NO_GRADIENTS = (
    "not all gradients were exchanged since the last step; call backward() outside no_sync() first,"
    " attach() before the first forward pass, and give DistributedDataParallel"
    " find_unused_parameters=True if layers can be unused"
)
_NO_LOCAL_GRADIENTS = (
    "not all layers got a gradient since the last step; call backward() outside no_sync() first,"
    " and use each layer in every step: local_steps refuses layers that can be unused"
)


class DdpSource:
    """Registers a hook with a DDP module and hands its buckets over to be exchanged.

    Args:
        module: the module to register with.
        engine: compresses the gradients.
        create_exchanges: creates the scheduler of exchanges, once the module has its hook: before
            that, the module may be refused, and a scheduler has threads and a process group.
        loss_scale: returns the scale of the loss, 1 without a scaler; called once per step.
        step_call: call of the loop that ends a step, for messages.
        pass_skipped_step: given a step's signals, passes the boundary of a step that the training
            loop's own scaler skipped; returns False for another step.

    Raises:
        HookError: the module already has a hook.
    """

    def __init__(
        self,
        module: DistributedDataParallel,
        engine: Engine,
        *,
        create_exchanges: Callable[[], ExchangeScheduler],
        loss_scale: Callable[[], float],
        step_call: str,
        pass_skipped_step: Callable[[Tensor], bool],
    ) -> None:
        self._register(module)
        self.exchanges = create_exchanges()
        self._engine = engine
        self._loss_scale = loss_scale
        self._step_call = step_call
        self._pass_skipped_step = pass_skipped_step
        self._names = {
            id(parameter): name for name, parameter in named_layers(module.module).items()
        }
        self._reduced = reduced_layers(module)
        self._broadcasts_buffers = module.broadcast_buffers
        self._module = weakref.ref(module)
        engine.feedback.keeps_old = module.find_unused_parameters and not module.static_graph
        self._handed_over: set[str] = set()
        """Layers of this backward pass, counted in static graphs."""
        self.is_local = False
        """Whether each worker keeps its own gradients, which are not exchanged then."""
        self._has_local_gradients = False

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
        """Whether gradients were exchanged since the last step boundary, or kept."""
        if self.is_local:
            return self._has_local_gradients
        self.exchanges.raise_failure()
        return self.exchanges.signals is not None

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients that a step exchanges, uncompressed."""
        return sum(parameter.nbytes for parameter in self._reduced.values())

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Exchanged parameters by name, in the order of the model."""
        return {name: one for name, one in self._reduced.items() if one.requires_grad}

    def keep_own_buffers(self, *, keeps: bool) -> None:
        """Implements `LocalGradientSource`."""
        if (module := self._module()) is not None:
            module.broadcast_buffers = self._broadcasts_buffers and not keeps

    def remove(self) -> None:
        """Do nothing, because a DDP module keeps its hook for good."""

    def exchange_gradients(self) -> None:
        """Do nothing: the backward pass exchanges them."""

    def take_signals(self) -> Tensor:
        """Return the step's signals, averaged over the workers, (7,).

        Raises:
            HookError: no gradients were exchanged since the last call.
            Exception: an exchange failed during the backward pass, for example because a connection
                was lost.
        """
        signals = self.exchanges.take_signals()
        if signals is None:
            module = self._module()
            if module is not None:
                check_synchronized(module)
            raise HookError(_NO_GRADIENTS)
        return signals

    def take_local_gradients(self) -> None:
        """Begin the next step of this worker alone.

        Raises:
            HookError: there are no gradients since the last call.
        """
        if not self._has_local_gradients:
            raise HookError(_NO_LOCAL_GRADIENTS)
        self._has_local_gradients = False

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

        While `is_local`, the bucket is returned as it is.

        Raises:
            HookError: the step's gradients were exchanged already, a gradient has another dtype or
                size than its parameter, or the pass runs inside `join()`.
            Exception: without overlap, the errors of the exchange.
        """
        ready_s = time.perf_counter()
        self._check_call()
        if grad_bucket.index() == 0 and not self.is_local:
            self._engine.loss_scale = self._loss_scale()
        bucket = Bucket(buffer=grad_bucket.buffer(), layers=self._layers(grad_bucket))
        is_last = self._is_last(grad_bucket, bucket.layers)
        if self.is_local:
            self._has_local_gradients |= is_last
            return _finished_future(bucket.buffer)
        return self.exchanges.hand_over(bucket, ready_s=ready_s, is_last=is_last)

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
            self.exchanges.begin_pass()
            self._handed_over.clear()
        self._handed_over |= names
        if len(self._handed_over) < len(self._reduced):
            return False
        self._handed_over.clear()
        return True

    def _check_call(self) -> None:
        module = self._module()
        if module is not None:
            check_join(module)
        # Signals of a round, whose exchange may run beside local steps, are not those of gradients.
        exchanged = None if self.is_local else self.exchanges.signals
        is_second = exchanged is not None and not self._pass_skipped_step(exchanged)
        if is_second or (self.is_local and self._has_local_gradients):
            done = "computed" if self.is_local else "exchanged"
            raise HookError(
                f"gradients were {done} twice for one step; call {self._step_call} after each"
                " backward(), and run all other forward and backward passes, whose gradients are"
                " accumulated or discarded, under no_sync()"
            )

    def _layers(self, bucket: GradBucket) -> tuple[Layer, ...]:
        parameters = bucket.parameters()
        names = [self._names[id(parameter)] for parameter in parameters]
        gradients = gradients_of(bucket.buffer(), bucket.gradients(), parameters)
        return tuple(
            Layer(name=name, gradient=gradient)
            for name, gradient in zip(names, gradients, strict=True)
        )


def _finished_future(buffer: Tensor) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future(
        devices=[buffer.device] if buffer.is_cuda else []
    )
    future.set_result(buffer)
    return future


def _make_comm_hook(
    source: "weakref.ref[DdpSource]",
) -> Callable[..., torch.futures.Future[Tensor]]:
    """Return the function that DDP calls with each bucket.

    DDP keeps it in C++, where Python's garbage collector sees no references: if it referred to the
    source, a model that the session's owner also holds would never be freed.
    """

    def on_bucket(state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:  # noqa: ARG001
        owner = source()
        if owner is None:
            raise HookError(
                "the session of this module is gone, so its gradients cannot be exchanged; keep"
                " what attach() returned for as long as the module is trained"
            )
        return owner.exchange_bucket(bucket)

    return on_bucket
