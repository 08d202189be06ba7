"""Hooks that tell a session of each gradient that has accumulated in `parameter.grad`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from accordion.base.errors import HookError


def hook_gradients(
    layers: Mapping[str, Tensor], on_gradient: Callable[[str, Tensor], None]
) -> Callable[[], None]:
    """Call `on_gradient` with name and parameter of each layer whose gradient has accumulated;
    return what removes the hooks.

    The parameters keep `on_gradient`, so it refers weakly to a session.
    """
    parameters: Iterable[tuple[str, Any]] = layers.items()  # torch does not type the method
    handles = [
        one.register_post_accumulate_grad_hook(partial(_tell, on_gradient, name))
        for name, one in parameters
    ]
    return partial(_remove, handles)


def is_hooked(parameter: Any) -> bool:
    """Return whether a session has a hook on the parameter."""
    # torch has no public name for these hooks.
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    return any(getattr(hook, "func", None) is _tell for hook in hooks.values())


def refuse_second_session(*, is_attached: bool) -> None:
    """Refuse a second session of a module.

    Raises:
        HookError: the module has one.
    """
    if is_attached:
        raise HookError(
            "the module passed to attach() has a session already; attach() once, or to a new module"
        )


def _tell(on_gradient: Callable[[str, Tensor], None], name: str, parameter: Tensor) -> None:
    on_gradient(name, parameter)


def _remove(handles: Iterable[Any]) -> None:
    for handle in handles:
        handle.remove()
