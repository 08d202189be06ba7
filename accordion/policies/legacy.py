"""LEGACY: stronger compression of large layers, and of smaller ones late in training.

"LEGACY: A Lightweight Dynamic Gradient Compression Strategy for Distributed Deep Learning", ICLR
2026, openreview.net/forum?id=DsBYEO3B8O.

    strong if  values of the layer >= early_size   before epoch late_from
               values of the layer >= late_size    from epoch late_from on

The policy uses no gradients, so it serves as a baseline for policies that do. The paper schedules
the parameter of a compressor by layer size or by training stage; this policy combines both, and
chooses between the ends of a ladder.
"""

from __future__ import annotations

from accordion.policies.policy_input import PolicyInput


def decide_levels(policy_input: PolicyInput) -> dict[str, str]:
    """Return the strongest level for large layers and the lightest one for the others."""
    options = policy_input.options
    is_late = policy_input.epoch >= options["late_from"]
    size = options["late_size" if is_late else "early_size"]
    return {
        layer: ladder[-1 if policy_input.size_by_layer[layer] >= size else 0].name
        for layer, ladder in policy_input.ladder_by_layer.items()
    }
