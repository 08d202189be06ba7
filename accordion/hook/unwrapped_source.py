"""Gradients of a module that is not wrapped in DistributedDataParallel, in a process without peers.

Ray Train's `prepare_model` does not wrap a model if there is one worker. Nothing is exchanged, so
gradients stay as they are; statistic, decisions and saved states work as in any session. Residuals
that were saved in a larger group are added once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from accordion.base.errors import HookError
from accordion.compress.compression_engine import Engine
from accordion.compress.layer_stacks import Layer
from accordion.compress.step_signals import Signal
from accordion.hook.ddp_buckets import as_real
from accordion.hook.gradient_hooks import hook_gradients, is_hooked, refuse_second_session
from accordion.hook.layers import named_layers
from accordion.hook.module_checks import has_peers


class UnwrappedSource:
    """Observes gradients as they accumulate in `parameter.grad`, before a script clips them.

    Nothing is exchanged. `unscale` divides the gradients by the loss scale.

    Raises:
        HookError: another session is attached to the module.
    """

    exchanges = None
    gradient_bytes = 0

    def __init__(
        self,
        module: torch.nn.Module,
        engine: Engine,
        raised: Callable[[], frozenset[Signal]],
        *,
        loss_scale: Callable[[], float],
        unscale: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._raised = raised
        self._loss_scale = loss_scale
        self._unscale = unscale
        self._layers = {name: p for name, p in named_layers(module).items() if p.requires_grad}
        refuse_second_session(is_attached=all(map(is_hooked, self._layers.values())))
        self._accumulated: set[str] = set()
        observe = partial(_observe_gradient, weakref.ref(self))
        self.remove = weakref.finalize(self, hook_gradients(self._layers, observe))
        """Detaches from the module, so that another session can attach."""

    @property
    def has_gradients(self) -> bool:
        """Whether there was a backward pass since the last step boundary."""
        return bool(self._accumulated)

    def observe_gradient(self, name: str, parameter: Tensor) -> None:
        """Observe a layer's gradient as far as it has accumulated."""
        if not self._accumulated:
            self._engine.loss_scale = self._loss_scale()
        self._accumulated.add(name)
        self._engine.observe_accumulated_gradient(_make_layer(name, parameter))

    def exchange_gradients(self) -> None:
        """Do nothing: there are no peers."""

    def take_signals(self) -> Tensor:
        """Return this process's signals, (7,), and add the residuals to the gradients.

        Raises:
            HookError: there was no backward pass since the last call, or the process has peers now.
        """
        if has_peers():
            raise HookError(
                "this process has peers now, but attach() got a module that is not wrapped, so that"
                " no gradients are compressed; call attach() after wrapping it in"
                " DistributedDataParallel"
            )
        if not self._accumulated:
            raise HookError(
                "there was no backward pass since the last step; call backward() before"
                " session.step()"
            )
        named = {name: self._layers[name] for name in self._accumulated}
        layers = [
            _make_layer(name, parameter)
            for name, parameter in named.items()
            if parameter.grad is not None
        ]
        self._accumulated.clear()
        self._engine.observe_other_layers(layers)
        device = next(iter(self._layers.values())).device
        signals = self._engine.own_signals(self._raised(), device)
        if self._engine.feedback.values:
            self._unscale()
            self._engine.feedback.add_to_gradients_(layers, loss_scale=1.0)
        return signals

    def unused_layers(self) -> list[str]:
        """Return no layers: a layer without a gradient sent nothing and keeps its residual."""
        return []


def _observe_gradient(source: weakref.ref[UnwrappedSource], name: str, parameter: Tensor) -> None:
    followed = source()
    if followed is not None:
        followed.observe_gradient(name, parameter)


def _make_layer(name: str, parameter: Tensor) -> Layer:
    if parameter.grad is None:
        raise HookError(
            f"the gradient of layer {name!r} was removed inside the backward pass; an optimizer"
            " that steps there is not supported, give attach() an ordinary one"
        )
    return Layer(name=name, gradient=as_real(parameter.grad.detach()))
