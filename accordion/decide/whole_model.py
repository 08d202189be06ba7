"""What a decision says about the whole model, with an override or without: the global batch, the
local steps, the optimizer, and the regimes while the batch has grown; pure, stdlib only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from accordion.base.messages import BatchLevel, OptimizerTarget, Regime
from accordion.config import BatchConfig
from accordion.decide.overrides import ResolvedOverride, whole_model_override

_ROUNDING = 1e-9
"""Slack in the fall of the rate: as floats, 0.1 / 0.0125 may be a little below 8."""


def batch_fields(
    batch: BatchConfig | None, policy_level: BatchLevel, *, held: ResolvedOverride | None
) -> dict[str, Any]:
    """Return a decision's fields about the batch; `held` is the override of it in force."""
    if batch is None:
        return {}
    if held is None or held.global_batch is None:
        return {"batch_level": policy_level, "global_batch": batch.size(policy_level)}
    return {
        "batch_level": batch.level(held.global_batch),
        "global_batch": held.global_batch,
        "batch_override": held.override.id,
        "policy_batch_level": policy_level,
    }


def local_steps_fields(policy_length: int, *, held: ResolvedOverride | None) -> dict[str, Any]:
    """Return a decision's fields about local steps; `held` is the override of them in force.

    An override holds in the start of a run too, in place of the exchange in every step: the user
    decided that training can do without it. When it ends within the start, gradients are exchanged
    in every step again.
    """
    if held is None:
        return {"local_steps": policy_length}
    return {
        "local_steps": held.local_steps,
        "local_steps_override": held.override.id,
        "policy_local_steps": policy_length,
    }


def optimizer_fields(overrides: Sequence[ResolvedOverride], epoch: int) -> dict[str, Any]:
    """Return a decision's fields about the optimizer, of which no policy decides anything."""
    targets = get_args(OptimizerTarget)
    found = {target: whole_model_override(overrides, epoch, target=target) for target in targets}
    held = {target: item for target, item in found.items() if item is not None}
    settings = {name: value for item in held.values() for name, value in item.optimizer.items()}
    return {
        "optimizer": settings,
        "optimizer_overrides": {target: item.override.id for target, item in held.items()},
    }


def batch_growth(
    batch: BatchConfig | None, policy_level: BatchLevel, *, held: ResolvedOverride | None
) -> float:
    """Return the ratio of the global batch to that of the low level; 1 without batch levels."""
    if batch is None:
        return 1.0
    size: int = batch_fields(batch, policy_level, held=held)["global_batch"]
    return size / batch.low


def has_outgrown(growth: float, fall: float) -> bool:
    """Return whether the batch has grown by more than the learning rate has fallen.

    Args:
        growth: ratio of the global batch to that of the low level.
        fall: ratio of the highest learning rate so far to the one from now on, both without the
            factor by which the rate follows the batch.

    A rate that follows the batch is then above all at which the small batch trained. What strong
    compression leaves out is late by as many steps as before, each of which goes further: the loss
    rises.
    """
    return growth > fall * (1.0 + _ROUNDING)


def regimes_in_force(
    regime_by_layer: Mapping[str, Regime], *, growth: float, fall: float
) -> Mapping[str, Regime]:
    """Return the detector's regimes, or critical ones while the batch has outgrown the rate's
    fall.
    """
    return (
        dict.fromkeys(regime_by_layer, "critical")
        if has_outgrown(growth, fall)
        else regime_by_layer
    )


def describe_growth(growth: float, fall: float) -> str:
    """Return in one clause why all layers count as critical; empty if the batch is no reason."""
    if not has_outgrown(growth, fall):
        return ""
    return (
        f"all layers count as critical: the global batch has grown {growth:.3g} times,"
        f" the learning rate has fallen {fall:.3g} times"
    )
