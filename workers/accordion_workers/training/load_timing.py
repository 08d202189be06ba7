"""Time that a script's steps spend on loading data, seen from its model."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accordion_workers.training.clock import Phases


def time_loading(module: nn.Module, phases: Phases) -> None:
    """End the phase `load` of each step with the module's first forward pass in training mode.

    What a script does between a step and the next forward pass counts as `load`: reading samples,
    moving them to the device, and its own code. A module that is not wrapped in
    DistributedDataParallel is left alone, because scripts export such a module; its loading counts
    as `compute`.
    """
    if isinstance(module, DistributedDataParallel):
        module.register_forward_pre_hook(_EndLoad(phases))


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
