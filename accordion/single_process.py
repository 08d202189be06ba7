"""Follows a module that is not wrapped in DistributedDataParallel, in a process without peers.

Ray Train's `prepare_model` leaves a model as it is if there is one worker. There is nothing to
exchange, so gradients stay what they are; statistic, decisions and saved states are those of any
session. Only residuals that were saved in a larger group are added, once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from accordion.control import Word, empty_word
from accordion.engine import Engine, Layer
from accordion.errors import HookError
from accordion.gradients import as_real
from accordion.hook import named_layers
from accordion.module_checks import has_peers


class SingleProcessHook:
    """Observes gradients as they accumulate in `parameter.grad`, before a script clips them.

    Its methods are those of `accordion.hook.Hook`.

    Raises:
        HookError: another session follows the module.
    """

    waited_s = 0.0

    def __init__(
        self,
        module: torch.nn.Module,
        engine: Engine,
        raised: Callable[[], frozenset[Word]],
        *,
        loss_scale: Callable[[], float],
        unscale: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._raised = raised
        self._loss_scale = loss_scale
        self._unscale = unscale
        self._layers = {name: p for name, p in named_layers(module).items() if p.requires_grad}
        if all(map(_is_followed, self._layers.values())):
            raise HookError(
                "the module passed to attach() has a session already; attach() once, or to a new"
                " module"
            )
        self._accumulated: set[str] = set()
        observe = partial(_observe, weakref.ref(self))
        layers: Iterable[tuple[str, Any]] = self._layers.items()  # torch does not type the method
        handles = [
            p.register_post_accumulate_grad_hook(partial(observe, name)) for name, p in layers
        ]
        self.remove = weakref.finalize(self, _remove, handles)
        """Stops following the module, so that another session can."""

    @property
    def has_gradients(self) -> bool:
        """Whether there was a backward pass since the last step boundary."""
        return bool(self._accumulated)

    def observe(self, name: str, parameter: Tensor) -> None:
        """See what has accumulated of a layer's gradient."""
        if not self._accumulated:
            self._engine.loss_scale = self._loss_scale()
        self._accumulated.add(name)
        self._engine.observe_accumulated(_layer(name, parameter))

    def take_word(self) -> Tensor:
        """Return the control word of this process; add to the gradients what their layers owe.

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
            _layer(name, parameter)
            for name, parameter in named.items()
            if parameter.grad is not None
        ]
        self._accumulated.clear()
        self._engine.observe_rest(layers)
        word = empty_word(next(iter(self._layers.values())).device)
        word[Word.NOT_FINITE] = self._engine.not_finite()
        for raised in self._raised():
            word[raised] = 1.0
        if self._engine.feedback.values:
            self._unscale()
            self._engine.loss_scale = 1.0
            self._engine.settle_(layers)
        return word

    def unused(self) -> list[str]:
        """Return no layers: one without a gradient keeps what it owes, since nothing of it was
        sent.
        """
        return []


def _observe(hook: weakref.ref[SingleProcessHook], name: str, parameter: Tensor) -> None:
    followed = hook()
    if followed is not None:
        followed.observe(name, parameter)


def _is_followed(parameter: Any) -> bool:
    hooks = (
        getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    )  # torch has no public way to see them
    return any(getattr(hook, "func", None) is _observe for hook in hooks.values())


def _remove(handles: Iterable[Any]) -> None:
    for handle in handles:
        handle.remove()


def _layer(name: str, parameter: Tensor) -> Layer:
    if parameter.grad is None:
        raise HookError(
            f"the gradient of layer {name!r} was removed inside the backward pass; an optimizer"
            " that steps there is not supported, give attach() an ordinary one"
        )
    return Layer(name=name, gradient=as_real(parameter.grad.detach()))
