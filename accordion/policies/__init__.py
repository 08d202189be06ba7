"""The table of policies; loads no torch.

A policy is a pure function from a `Situation` to the name of the rung each layer gets, or `none`
for no compression. One that learns from reports has a second, `observe`, that gives the state it is
handed from then on. To add one: a file with a `choose` function, a row here, a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accordion.errors import ConfigError
from accordion.messages import Level, Regime
from accordion.policies import adaqs, fixed, scheduled, two_level
from accordion.policies.situation import Situation

Pick = Callable[[Situation], Mapping[str, str]]
Observe = Callable[[Situation], Mapping[str, Any]]
Check = Callable[[Mapping[str, object], Sequence[str]], None]
UNCOMPRESSED = "none"
"""What every policy may pick besides the rungs."""
_TWO_RUNGS = tuple(Level(name=name, method=UNCOMPRESSED) for name in ("low", "high"))


def keep_state(situation: Situation) -> Mapping[str, Any]:
    """The `observe` of a policy that learns nothing from reports."""
    return situation.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One policy; both functions are pure."""

    summary: str
    pick: Pick
    """A rung's name, or `none`, for every layer of the situation."""
    check: Check
    """`check(options, rungs)` refuses bad options."""
    schema: Mapping[str, object]
    """JSON schema of its options."""
    observe: Observe = keep_state
    """The policy's state after one report, as JSON."""

    def choose(
        self, regime_by_layer: Mapping[str, Regime], epoch: int, options: Mapping[str, object]
    ) -> dict[str, str]:
        """What it picks before it has observed anything, by regimes and epoch alone; ladders are
        `low` and `high`.
        """
        ladders = dict.fromkeys(regime_by_layer, _TWO_RUNGS)
        situation = Situation(
            epoch=epoch, regime_by_layer=regime_by_layer, ladder_by_layer=ladders, options=options
        )
        return dict(self.pick(situation))


POLICIES: Mapping[str, Policy] = {
    "two_level": Policy(
        summary="light compression in critical regimes, strong elsewhere (arXiv:2010.16248)",
        pick=two_level.choose,
        check=two_level.check,
        schema=two_level.SCHEMA,
    ),
    "fixed": Policy(
        summary="one level for the whole run",
        pick=fixed.choose,
        check=fixed.check,
        schema=fixed.SCHEMA,
    ),
    "scheduled": Policy(
        summary="a table of levels by epoch",
        pick=scheduled.choose,
        check=scheduled.check,
        schema=scheduled.SCHEMA,
    ),
    "adaqs": Policy(
        summary=(
            "strong at first, lighter rung by rung as a layer's signal-to-noise ratio falls (AdaQS,"
            " ICASSP 2020)"
        ),
        pick=adaqs.choose,
        check=adaqs.check,
        schema=adaqs.SCHEMA,
        observe=adaqs.observe,
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


__all__ = ["POLICIES", "UNCOMPRESSED", "Policy", "Situation", "check_policy"]
