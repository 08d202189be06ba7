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

from accordion.policies.policy_input import PolicyInput, count_levels


def decide_levels(policy_input: PolicyInput) -> dict[str, str]:
    """Return the strongest level for large layers and the lightest one for the others."""
    size = policy_input.options[_size_option(policy_input)]
    return {
        layer: ladder[-1 if policy_input.size_by_layer[layer] >= size else 0].name
        for layer, ladder in policy_input.ladder_by_layer.items()
    }


def explain_levels(policy_input: PolicyInput) -> str:
    """Return in one clause the number of layers at each level, the stage and its size."""
    option, late_from = _size_option(policy_input), policy_input.options["late_from"]
    stage = f"from epoch {late_from} on" if option == "late_size" else f"before epoch {late_from}"
    return (
        f"{count_levels(decide_levels(policy_input))}, because {stage} those with"
        f" {policy_input.options[option]} values or more ({option}) are compressed strongly"
    )


def _size_option(policy_input: PolicyInput) -> str:
    is_late = policy_input.epoch >= policy_input.options["late_from"]
    return "late_size" if is_late else "early_size"
