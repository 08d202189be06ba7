"""Levels by epoch: `{"0": "low", "10": "high"}` is `low` until epoch 9 and `high` from 10 on."""

from __future__ import annotations

from accordion.policies.policy_input import PolicyInput


def decide_levels(policy_input: PolicyInput) -> dict[str, str]:
    """Return the level in the table for each layer."""
    table = policy_input.options["table"]
    start = max(first for first in table if first <= policy_input.epoch)
    return dict.fromkeys(policy_input.regime_by_layer, table[start])
