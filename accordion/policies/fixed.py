"""One level for the whole run, whatever the regimes say: the baseline to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accordion.errors import ConfigError
from accordion.policies.situation import Situation

SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "level": {"type": "string", "default": "high", "description": "rung of every layer"}
    },
    "additionalProperties": False,
}
_DEFAULT_LEVEL = "high"


def choose(situation: Situation) -> dict[str, str]:
    """The rung of each layer."""
    level = str(situation.options.get("level", _DEFAULT_LEVEL))
    return dict.fromkeys(situation.regime_by_layer, level)


def check(options: Mapping[str, object], rungs: Sequence[str]) -> None:
    """Accept `level`, one of the rungs.

    Raises:
        ConfigError: another option, or a rung that the ladder does not have.
    """
    unknown = sorted(set(options) - {"level"})
    if unknown:
        raise ConfigError(f"policy fixed has no option {unknown[0]!r}; known is level")
    level = options.get("level", _DEFAULT_LEVEL)
    if level not in rungs:
        raise ConfigError(f"policy fixed: level is {level!r}; known are {', '.join(rungs)}")
