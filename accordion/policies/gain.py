"""The strongest level that still sends most of a layer's gradient.

"GraVAC: Adaptive Compression for Communication-Efficient Distributed DL Training", IEEE CLOUD 2023,
arXiv:2305.12201.

    gain = |sent|^2 / |gradient + residual|^2        of a layer, over one window

A layer starts on its lightest level and moves to the next stronger one as long as the gain of the
level in force is at least `least`. If the gain is smaller, the layer moves back by one level, from
the lightest one to no compression, and tries the stronger level again after `retry` windows.

Differences from the paper: gains are measured by layer and not for the whole model; only the level
in force is measured, where the paper compresses each gradient twice; and the paper also stops where
a stronger level no longer raises throughput, which is left to `cost_aware`. Layers are measured
only where the method keeps residuals and no override is in force; others keep their level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accordion.compressors import COMPRESSORS
from accordion.policies.policy_input import PolicyInput

_UNCOMPRESSED = "none"
_START = {"level": 0, "wait": 0}
"""State of a layer at the start; level -1 is no compression, `wait` counts windows."""


def decide_levels(policy_input: PolicyInput) -> dict[str, str]:
    """Return the level of each layer that its last gains allow."""
    levels = {}
    for layer, ladder in policy_input.ladder_by_layer.items():
        index = min(len(ladder) - 1, policy_input.state.get(layer, _START)["level"])
        levels[layer] = _UNCOMPRESSED if index < 0 else ladder[index].name
    return levels


def observe_report(policy_input: PolicyInput) -> Mapping[str, Any]:
    """Return the level of each layer, and the windows before it tries a stronger one."""
    if policy_input.statistic_by_layer is None:
        return policy_input.state
    least, retry = float(policy_input.options["least"]), int(policy_input.options["retry"])
    after = {}
    for layer, ladder in policy_input.ladder_by_layer.items():
        before = policy_input.state.get(layer, _START)
        level, wait = min(len(ladder) - 1, before["level"]), before["wait"]
        gain = policy_input.sent_share_by_layer.get(layer)
        if level >= 0 and gain is None:
            after[layer] = before
        elif gain is not None and gain < least:
            after[layer] = {"level": max(-1, level - 1), "wait": retry}
        elif wait > 1:
            after[layer] = {"level": level, "wait": wait - 1}
        else:
            after[layer] = {"level": min(len(ladder) - 1, level + 1), "wait": 0}
    return after


def explain_levels(policy_input: PolicyInput) -> str:
    """Return in one clause the smallest and the largest gain, or why none is measured."""
    gains = policy_input.sent_share_by_layer
    if not gains:
        return _explain_no_gains(policy_input)
    least = float(policy_input.options["least"])
    return (
        f"layers sent {min(gains.values()):.0%} to {max(gains.values()):.0%} of their energy, where"
        f" at least {least:.0%} is wanted"
    )


def _explain_no_gains(policy_input: PolicyInput) -> str:
    methods = {ladder[0].method for ladder in policy_input.ladder_by_layer.values()}
    if any(COMPRESSORS[method].feedback for method in methods):
        return ""
    return (
        f"layers stay at their lightest level, because {' and '.join(sorted(methods))} keeps no"
        " residuals, without which no gain is measured; take a method such as powersgd or topk"
    )
