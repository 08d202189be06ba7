"""Stronger compression as the learning rate falls, since late bytes buy little.

    steps down the ladder = floor(log(peak / rate) / log(fall))

The peak is the highest rate so far, so a warm-up counts as the peak, and a rate that rises again
makes compression lighter again. All layers have the same level, whatever their gradients do. The
idea is that of rounds of local steps, which become longer as the rate falls: what is sent late
changes little.
"""

from __future__ import annotations

import math

from accordion.policies.policy_input import PolicyInput, count_levels

_ROUNDING = 1e-9
"""Slack in the number of levels: as floats, 0.1 / 0.01 is a little below 10."""


def decide_levels(policy_input: PolicyInput) -> dict[str, str]:
    """Return the level of each layer by how far the learning rate has fallen."""
    down = _steps_down(policy_input)
    return {
        layer: ladder[min(down, len(ladder) - 1)].name
        for layer, ladder in policy_input.ladder_by_layer.items()
    }


def explain_levels(policy_input: PolicyInput) -> str:
    """Return in one clause how many layers are at each level, and how far the rate has fallen."""
    return (
        f"{count_levels(decide_levels(policy_input))}, because the learning rate's peak is"
        f" {policy_input.rate_fall:.3g} times the rate now, and each level takes a factor of"
        f" {policy_input.options['fall']:g} (fall)"
    )


def _steps_down(policy_input: PolicyInput) -> int:
    fall = max(1.0, policy_input.rate_fall)
    return int(math.log(fall) / math.log(float(policy_input.options["fall"])) + _ROUNDING)
