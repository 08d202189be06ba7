"""The paper's policy: light compression in critical regimes, strong elsewhere.

arXiv:2010.16248, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from accordion.base.messages import Regime
from accordion.policies.policy_input import PolicyInput

_LEVEL_OF: Mapping[Regime, str] = {"critical": "low", "stable": "high"}


def decide_levels(policy_input: PolicyInput) -> dict[str, str]:
    """Return the level of each layer, by its regime."""
    return {layer: _LEVEL_OF[regime] for layer, regime in policy_input.regime_by_layer.items()}
