"""The learning rates of a script's own optimizer while an override of them holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from accordion_workers.training.train_state import TrainState


@contextmanager
def override_rates(state: TrainState) -> Iterator[float]:
    """Give the optimizer, for a step, the rates that an override makes of the script's, and yield
    that of the first group. Then the script has its own again, from which its schedule goes on.
    Groups without a rate, as those of an Adafactor that chooses its steps, are left alone.
    """
    held = state.held
    groups = [one for one in state.optimizer.param_groups if one.get("lr") is not None]
    own = [group["lr"] for group in groups]
    if held and not groups:
        state.tell_no_rate()
    if held:
        for group, rate in zip(groups, own, strict=True):
            group["lr"] = _like(rate, state.rate_in_force(float(rate), held))
    try:
        yield state.rate
    finally:
        if held:
            for group, rate in zip(groups, own, strict=True):
                group["lr"] = rate


def _like(own: float | Tensor, rate: float) -> float | Tensor:
    """Return the rate as a tensor where the script has one, as a captured optimizer needs."""
    return torch.full_like(own, rate) if isinstance(own, Tensor) else rate


__all__ = ["override_rates"]
