"""Gradients of a module that is not wrapped in DistributedDataParallel, in a process without peers.

Ray Train's `prepare_model` does not wrap a model if there is one worker. Nothing is exchanged, so
gradients stay as they are; statistic, decisions and saved states work as in any session. Residuals
that were saved in a larger group are added once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from accordion.base.errors import HookError
from accordion.compress.compression_engine import Engine
from accordion.compress.layer_stacks import Layer
from accordion.compress.step_signals import Signal
from accordion.hook.ddp_buckets import as_real
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
        if all(map(_is_observed, self._layers.values())):
            raise HookError(
                "the module passed to attach() has a session already; attach() once, or to a new"
                " module"
            )
        self._accumulated: set[str] = set()
        observe = partial(_observe_gradient, weakref.ref(self))
        layers: Iterable[tuple[str, Any]] = self._layers.items()  # torch does not type the method
        handles = [
            p.register_post_accumulate_grad_hook(partial(observe, name)) for name, p in layers
        ]
        self.remove = weakref.finalize(self, _remove_handles, handles)
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


def _is_observed(parameter: Any) -> bool:
    # torch has no public name for these hooks.
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    return any(getattr(hook, "func", None) is _observe_gradient for hook in hooks.values())


def _remove_handles(handles: Iterable[Any]) -> None:
    for handle in handles:
        handle.remove()


def _make_layer(name: str, parameter: Tensor) -> Layer:
    if parameter.grad is None:
        raise HookError(
            f"the gradient of layer {name!r} was removed inside the backward pass; an optimizer"
            " that steps there is not supported, give attach() an ordinary one"
        )
    return Layer(name=name, gradient=as_real(parameter.grad.detach()))
