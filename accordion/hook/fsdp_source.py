"""Gradients of a module that FSDP2 shards: what a worker holds of them, after FSDP has averaged it
over the workers that hold the model together.

The parts of one call of `fully_shard` lie in one buffer, which is exchanged over the replicas while
the backward pass goes on to the layers below. At its end the averages are in `parameter.grad`, so
that a script can clip them.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from accordion.base.errors import HookError
from accordion.compress.compression_engine import Engine
from accordion.compress.layer_stacks import Bucket, Layer
from accordion.config import format_layers
from accordion.hook.ddp_buckets import as_real
from accordion.hook.exchange_scheduler import ExchangeScheduler
from accordion.hook.gradient_hooks import hook_gradients, is_hooked, refuse_second_session
from accordion.hook.module_checks import device_of
from accordion.hook.sharded_module import (
    local_part,
    runs_backward,
    sharded_parameters,
    units_of,
)


class FsdpSource:
    """Hands the gradients of each backward pass over to be exchanged, as they become complete.

    Args:
        module: the sharded module.
        engine: compresses the gradients.
        create_exchanges: creates the scheduler of exchanges, as of `DdpSource`.
        loss_scale: returns the scale of the loss, 1 without a scaler; called once per step.
        step_call: call of the loop that ends a step, for messages.
        pass_skipped_step: as of `DdpSource`.

    Raises:
        HookError: the module has a session already.
    """

    def __init__(
        self,
        module: nn.Module,
        engine: Engine,
        *,
        create_exchanges: Callable[[], ExchangeScheduler],
        loss_scale: Callable[[], float],
        step_call: str,
        pass_skipped_step: Callable[[Tensor], bool],
    ) -> None:
        self.parameters = {
            name: one for name, one in sharded_parameters(module).items() if one.requires_grad
        }
        """Exchanged parameters by name, in the order of the model: DTensors."""
        refuse_second_session(is_attached=any(map(is_hooked, self.parameters.values())))
        self.exchanges = create_exchanges()
        self._module, self._engine, self._loss_scale = module, engine, loss_scale
        self._step_call, self._pass_skipped_step = step_call, pass_skipped_step
        self._units = {name: unit for unit in units_of(module) for name in unit}
        self._end: weakref.ref[Callable[[], None]] | None = None
        """Call that ends the running pass, which torch drops if the pass fails."""
        self._was_nested = False
        """Whether a pass has ended within the one to exchange, as in a reentrant checkpoint."""
        self._missing: set[str] = set()
        """Layers whose gradients it has not completed."""
        self._held: Bucket | None = None
        """Newest complete bucket, which may be the last one of its pass."""
        self._futures: list[torch.futures.Future[Tensor]] = []
        self.is_local = False
        """Whether each replica keeps its own gradients, which are not exchanged then."""
        self._has_local_gradients = False
        observe = partial(_observe_gradient, weakref.ref(self))
        self.remove = hook_gradients(self.parameters, observe)
        """Detaches from the module, so that another session can attach."""

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
        return sum(local_part(one).nbytes for one in self.parameters.values())

    def exchange_gradients(self) -> None:
        """Do nothing: the backward pass exchanges them."""

    def take_signals(self) -> Tensor:
        """Return the step's signals, averaged over the workers, (7,).

        Raises:
            HookError: no gradients were exchanged since the last call.
            Exception: an exchange failed during the backward pass.
        """
        signals = self.exchanges.take_signals()
        if signals is None:
            raise self._explain_no_gradients("exchanged")
        return signals

    def take_local_gradients(self) -> None:
        """Begin the next step of this replica alone.

        Raises:
            HookError: there are no gradients since the last call.
        """
        if not self._has_local_gradients:
            raise self._explain_no_gradients("computed")
        self._has_local_gradients = False

    def _explain_no_gradients(self, done: str) -> HookError:
        if self._missing:
            return HookError(
                f"the layers {format_layers(sorted(self._missing))} got no gradient in the last"
                " backward pass; after an error in one, call reset_iter_state() on the model, and"
                " backward() again"
            )
        return HookError(
            f"no gradients were {done} since the last step; call backward() first, the last time of"
            " each step after set_requires_gradient_sync(True)"
        )

    def keep_own_buffers(self, *, keeps: bool) -> None:
        """Do nothing: FSDP2 shares no buffers."""

    def unused_layers(self) -> list[str]:
        """Return no layers: every one has a gradient."""
        return []

    def observe_gradient(self, name: str) -> None:
        """Exchange the gradients of a call of `fully_shard` when the last of them is complete.

        Raises:
            HookError: the step's gradients, or the layer's in this pass, were exchanged already.
            Exception: without overlap, the errors of the exchange.
        """
        if self._was_nested and name in self._missing:
            self._queue_end()
        elif self._end is None or self._end() is None:
            self._begin_pass()
        if name not in self._missing:
            raise HookError(
                f"layer {name!r} got a gradient twice in one backward pass, because its part of the"
                " model is used twice and gradients were accumulated before; call fully_shard() on"
                " a part around both uses, or do not accumulate"
            )
        self._missing.remove(name)
        unit = self._units[name]
        if self._missing.isdisjoint(unit) and not self.is_local:
            for bucket in self._make_buckets(unit):
                self._hand_over_held(is_last=False)
                self._held = bucket

    def _begin_pass(self) -> None:
        # Signals of a round, whose exchange may run beside local steps, are not those of gradients.
        exchanged = None if self.is_local else self.exchanges.signals
        is_second = exchanged is not None and not self._pass_skipped_step(exchanged)
        if is_second or (self.is_local and self._has_local_gradients):
            done = "computed" if self.is_local else "exchanged"
            raise HookError(
                f"gradients were {done} twice for one step; call {self._step_call} after each"
                " backward(), and accumulate gradients after set_requires_gradient_sync(False)"
            )
        self._missing, self._held, self._futures = set(self.parameters), None, []
        if not self.is_local:
            self._engine.loss_scale = self._loss_scale()
            self.exchanges.begin_pass()
        self._queue_end()

    def _queue_end(self) -> None:
        end, self._was_nested = partial(self._end_pass), False
        self._end = weakref.ref(end)
        # As FSDP and DDP end a backward pass; torch has no public name for it.
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(end)

    def _end_pass(self) -> None:
        """Exchange what is left, and wait for the averages; do nothing if gradients follow."""
        self._end = None
        self._was_nested = bool(self._missing) and runs_backward(self._module)
        if self._was_nested:
            return
        if self._missing:
            raise HookError(
                f"the layers {format_layers(sorted(self._missing))} got no gradient; with FSDP2,"
                " every layer that trains at attach() needs one on every worker in every step:"
                " freeze it before attach(), or call set_reduce_scatter_unused_params(True) where"
                " others of its call of fully_shard() are used"
            )
        if self.is_local:
            self._has_local_gradients = True
            return
        self._hand_over_held(is_last=True)
        futures, self._futures = self._futures, []
        for future in futures:
            future.wait()
        self.exchanges.raise_failure()

    def _hand_over_held(self, *, is_last: bool) -> None:
        held, self._held = self._held, None
        if held is None and is_last:  # this worker holds no value of the model
            held = Bucket(
                buffer=torch.empty(0, dtype=torch.float32, device=device_of(self._module)),
                layers=(),
            )
        if held is not None:
            future = self.exchanges.hand_over(held, ready_s=time.perf_counter(), is_last=is_last)
            self._futures.append(future)

    def _make_buckets(self, names: Sequence[str]) -> list[Bucket]:
        """Return one bucket if the gradients lie in one buffer, or else one of each layer; a worker
        may hold no value of a small layer.
        """
        layers = [Layer(name=name, gradient=self._local_gradient(name)) for name in names]
        layers = [layer for layer in layers if layer.gradient.numel()]
        parts = [layer.gradient for layer in layers]
        if len({part.untyped_storage().data_ptr() for part in parts}) == 1:
            return [Bucket(buffer=_span(parts), layers=tuple(layers))]
        return [Bucket(buffer=_span([one.gradient]), layers=(one,)) for one in layers]

    def _local_gradient(self, name: str) -> Tensor:
        return as_real(local_part(self.parameters[name].grad).detach())


def _span(parts: Sequence[Tensor]) -> Tensor:
    """View the memory from the first of these contiguous parts of a buffer to the last one."""
    start = min(part.storage_offset() for part in parts)
    end = max(part.storage_offset() + part.numel() for part in parts)
    return parts[0].as_strided((end - start,), (1,), start)


def _observe_gradient(source: weakref.ref[FsdpSource], name: str, _: Tensor) -> None:
    followed = source()
    if followed is None:
        raise HookError(
            "the session of this module is gone, so its gradients cannot be exchanged; keep what"
            " attach() returned for as long as the module is trained"
        )
    followed.observe_gradient(name)
