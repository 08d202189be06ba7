"""Stronger compression as the entropy of a layer's gradient falls.

"EDGC: Entropy-driven Dynamic Gradient Compression for Efficient LLM Training", arXiv:2511.10333.

    entropy = ln(2 * pi * e * rms^2 / values) / 2        in nats per value of a layer, one window

`rms` is the root mean square of the norms of single gradients, and the entropy that of normally
distributed values with this energy. A layer starts on its lightest level, and the first window is
its reference. It is one level stronger for each `drop` nats that its entropy lies below the
reference, and returns when the entropy rises again.

Differences from the paper: the entropy comes from the statistic that all policies get and not from
a histogram of sampled gradients; a ladder's levels take the place of a rank computed from the
entropy. A window after a change of batch or world size, whose noise differs, moves the reference so
that the level stays. If a report has no `rms`, the norm of the mean gradient takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from accordion.policies.policy_input import PolicyInput, count_levels


def decide_levels(policy_input: PolicyInput) -> dict[str, str]:
    """Return the level of each layer, by how far its entropy has fallen."""
    drop = float(policy_input.options["drop"])
    levels = {}
    for layer, ladder in policy_input.ladder_by_layer.items():
        fallen = _fallen_nats(policy_input.state.get(layer))
        levels[layer] = ladder[min(len(ladder) - 1, max(0, int(fallen / drop)))].name
    return levels


def observe_report(policy_input: PolicyInput) -> Mapping[str, Any]:
    """Return the reference and the newest entropy of each layer after a report."""
    norms = policy_input.rms_by_layer or policy_input.statistic_by_layer
    if norms is None:
        return policy_input.state
    after = dict(policy_input.state)
    for layer, norm in norms.items():
        entropy = _entropy(norm, policy_input.size_by_layer[layer])
        if entropy is None:
            continue
        before = after.get(layer)
        if before is None:
            reference = entropy
        elif policy_input.cause == "skip":
            reference = entropy + _fallen_nats(before)
        else:
            reference = before["reference"]
        after[layer] = {"reference": reference, "entropy": entropy}
    return after


def explain_levels(policy_input: PolicyInput) -> str:
    """Return in one clause how many layers are at each level, and how far the entropy fell."""
    counts = count_levels(decide_levels(policy_input))
    fallen = [_fallen_nats(state) for state in policy_input.state.values()]
    if not fallen:
        return f"{counts}, because no entropy is measured yet"
    return (
        f"{counts}, because their entropy fell by {min(fallen):.2f} to {max(fallen):.2f} nats since"
        f" the first window, and each level takes {policy_input.options['drop']:g} (drop)"
    )


def _entropy(norm: float, values: int) -> float | None:
    """Return nats per value; None without a gradient that can be measured."""
    if not 0.0 < norm < math.inf:
        return None
    return math.log(norm) + 0.5 * math.log(2.0 * math.pi * math.e / values)


def _fallen_nats(state: Mapping[str, float] | None) -> float:
    return 0.0 if state is None else state["reference"] - state["entropy"]
