"""Time that a script's steps spend on loading data, seen from its model."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from workers.training.clock import Phases


def time_loading(module: nn.Module, phases: Phases) -> None:
    """End the phase `load` of each step with the module's first forward pass in training mode.

    What a script does between a step and the next forward pass counts as `load`: reading samples,
    moving them to the device, and its own code.
    """
    followed = weakref.ref(phases)

    def end_load(trained: nn.Module, inputs: Any) -> None:  # noqa: ARG001
        times = followed()
        if times is not None and trained.training:
            times.end_load()

    module.register_forward_pre_hook(end_load)


__all__ = ["time_loading"]
