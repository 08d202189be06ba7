"""One level for the whole run, independent of the regimes: a baseline for comparisons."""

from __future__ import annotations

from accordion.policies.policy_input import PolicyInput


def decide_levels(policy_input: PolicyInput) -> dict[str, str]:
    """Return the configured level for each layer."""
    return dict.fromkeys(policy_input.regime_by_layer, str(policy_input.options["level"]))
