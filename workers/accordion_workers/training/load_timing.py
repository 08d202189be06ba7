"""Time that a script's steps spend on loading data, seen from its loaders or its model."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from accordion_workers.training.clock import Phases


def time_loading(module: nn.Module, phases: Phases) -> None:
    """Count as `load` the time in which the calling thread waits for DataLoaders of torch, while
    the module is in training mode.

    Until the thread asks such a loader, its loader is unknown. Then all time between a step and
    the module's next forward pass in training mode counts as `load`, the script's own code
    included. A module that is not wrapped in DistributedDataParallel has no such hook, because
    scripts export such a module; with an unknown loader, its loading counts as `compute`.
    """
    _time_loaders()
    _WAITS[:] = [wait for wait in _WAITS if wait.is_needed]
    _WAITS.append(_Wait(module, phases))
    if isinstance(module, DistributedDataParallel):
        module.register_forward_pre_hook(_EndLoad(phases))


class _Wait:
    """Counts the waits for loaders of the thread that makes it, for one module."""

    def __init__(self, module: nn.Module, phases: Phases) -> None:
        self._module, self._phases = weakref.ref(module), weakref.ref(phases)
        self._thread = threading.get_ident()

    @property
    def is_needed(self) -> bool:
        """Whether the module and its phases still exist."""
        return self._module() is not None and self._phases() is not None

    def find_phases(self) -> Phases | None:
        """Return the phases in which this thread's wait counts."""
        module = self._module()
        if module is None or threading.get_ident() != self._thread:
            return None
        # An evaluation may switch the script's own module only.
        own = module.module if isinstance(module, DistributedDataParallel) else module
        return self._phases() if own.training else None


_WAITS: list[_Wait] = []
"""One per session of this process: loaders belong to no session."""


@contextmanager
def _count_wait() -> Iterator[None]:
    with ExitStack() as counted:
        for phases in [wait.find_phases() for wait in _WAITS]:
            if phases is not None:
                counted.enter_context(phases.wait_for_loader())
        yield


@functools.cache
def _time_loaders() -> None:
    """Time what is waited for in every DataLoader: the start of its processes, and each batch.

    Frameworks wrap a script's loader or make their own, and each asks torch's iterator in the end.
    """
    _BaseDataLoaderIter.__next__ = _count_calls(_BaseDataLoaderIter.__next__)  # type: ignore[method-assign]
    DataLoader.__iter__ = _count_calls(DataLoader.__iter__)  # type: ignore[method-assign]


def _count_calls(method: Any) -> Any:
    @functools.wraps(method)
    def call(*arguments: Any) -> Any:
        with _count_wait():
            return method(*arguments)

    return call


class _EndLoad:
    """Hook that ends the phase `load`; a copy or a pickle of it does nothing."""

    def __init__(self, phases: Phases | None = None) -> None:
        self._phases = None if phases is None else weakref.ref(phases)

    def __call__(self, module: nn.Module, inputs: Any) -> None:  # noqa: ARG002
        phases = None if self._phases is None else self._phases()
        if phases is not None and module.training:
            phases.end_load()

    def __reduce__(self) -> tuple[type[_EndLoad], tuple[()]]:
        return _EndLoad, ()


__all__ = ["time_loading"]
