"""The table of policies; loads no torch.

A policy is a pure function from regimes and epoch to the name of the rung each layer gets.
To add one: a file with a `choose` function, a row here, a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from accordion.errors import ConfigError
from accordion.messages import Regime
from accordion.policies import fixed, scheduled, two_level

Choose = Callable[[Mapping[str, Regime], int, Mapping[str, object]], dict[str, str]]
Check = Callable[[Mapping[str, object], Sequence[str]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One policy: `choose(regimes, epoch, options)` gives a rung's name per layer, `check` refuses bad options."""

    summary: str
    choose: Choose
    check: Check
    schema: Mapping[str, object]
    """JSON schema of its options."""


POLICIES: Mapping[str, Policy] = {
    "two_level": Policy(
        summary="light compression in critical regimes, strong elsewhere (arXiv:2010.16248)",
        choose=two_level.choose,
        check=two_level.check,
        schema=two_level.SCHEMA,
    ),
    "fixed": Policy(summary="one level for the whole run", choose=fixed.choose, check=fixed.check, schema=fixed.SCHEMA),
    "scheduled": Policy(
        summary="a table of levels by epoch", choose=scheduled.choose, check=scheduled.check, schema=scheduled.SCHEMA
    ),
}


def check_policy(name: str, options: Mapping[str, object], rungs: Sequence[str]) -> None:
    """Accept the policy and its options, or say what is wrong.

    Raises:
        ConfigError: an unknown policy or option, or a rung that the ladder does not have.
    """
    if name not in POLICIES:
        raise ConfigError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}")
    POLICIES[name].check(options, rungs)


__all__ = ["POLICIES", "Policy", "check_policy"]
