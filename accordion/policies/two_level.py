"""The paper's policy: light where the regime is critical, strong elsewhere (arXiv:2010.16248,
algorithm 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accordion.errors import ConfigError
from accordion.messages import Regime
from accordion.policies.situation import Situation

SCHEMA: Mapping[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}
_LEVEL_OF: Mapping[Regime, str] = {"critical": "low", "stable": "high"}


def choose(situation: Situation) -> dict[str, str]:
    """The rung of each layer."""
    return {layer: _LEVEL_OF[regime] for layer, regime in situation.regime_by_layer.items()}


def check(options: Mapping[str, object], rungs: Sequence[str]) -> None:  # noqa: ARG001
    """Accept no options.

    Raises:
        ConfigError: an option was given.
    """
    if options:
        raise ConfigError(f"policy two_level has no option {sorted(options)[0]!r}; it takes none")
