"""A table of levels by epoch: `{"table": {"0": "low", "10": "high"}}` is light until epoch 9 and
strong from 10 on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accordion.errors import ConfigError
from accordion.policies.situation import Situation

SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "table": {
            "type": "object",
            "description": "first epoch (from 0, as text) to rung; epoch 0 must be there",
            "additionalProperties": {"type": "string"},
        }
    },
    "required": ["table"],
    "additionalProperties": False,
}


def choose(situation: Situation) -> dict[str, str]:
    """The rung of each layer."""
    table = _table(situation.options)
    start = max(first for first in table if first <= situation.epoch)
    return dict.fromkeys(situation.regime_by_layer, table[start])


def check(options: Mapping[str, object], rungs: Sequence[str]) -> None:
    """Accept a table that begins at epoch 0 and names rungs.

    Raises:
        ConfigError: another option, no table, a key that is no epoch, or a rung that the ladder
            does not have.
    """
    unknown = sorted(set(options) - {"table"})
    if unknown:
        raise ConfigError(f"policy scheduled has no option {unknown[0]!r}; known is table")
    table = _table(options)
    if 0 not in table:
        raise ConfigError(
            f"policy scheduled: the table starts at epoch {min(table, default=None)}; give epoch 0"
            " a level"
        )
    for first, level in table.items():
        if level not in rungs:
            raise ConfigError(
                f"policy scheduled: level {level!r} at epoch {first}; known are {', '.join(rungs)}"
            )


def _table(options: Mapping[str, object]) -> dict[int, str]:
    table = options.get("table")
    if not isinstance(table, Mapping):
        raise ConfigError(
            f"policy scheduled: table is {table!r}; it must be a mapping such as {{'0': 'low',"
            " '10': 'high'}"
        )
    wrong = [key for key in table if not str(key).isdecimal()]
    if wrong:
        raise ConfigError(
            f"policy scheduled: {wrong[0]!r} is no epoch; keys are whole numbers from 0"
        )
    return {int(key): str(level) for key, level in table.items()}
