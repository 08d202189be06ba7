"""The table of policies; loads no torch.

A policy is a pure function from a `PolicyInput` to the name of each layer's level: one of the
layer's ladder, `none` for no compression, or `half` for 16 bits. A policy that learns from reports
has a second function, `observe_report`, which returns its new state; `explain_levels` adds a clause
to the decision's reason. To add a policy: a file with a `decide_levels` function, a row here, a
test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from accordion.base.errors import ConfigError
from accordion.base.messages import Level, Regime
from accordion.base.options import Option, TableOption, check_options
from accordion.compressors import LEVEL_NAMES
from accordion.policies import (
    adaqs,
    by_rate,
    cost_aware,
    entropy,
    fixed,
    gain,
    legacy,
    round_length,
    scheduled,
    two_level,
)
from accordion.policies.policy_input import PolicyInput

UNCOMPRESSED = "none"
"""Level that every policy may return besides those of the ladder."""
_LADDER = tuple(Level(name=name, method=UNCOMPRESSED) for name in LEVEL_NAMES)


def keep_state(policy_input: PolicyInput) -> Mapping[str, Any]:
    """Return the state unchanged: `observe_report` of a policy that learns nothing from reports."""
    return policy_input.state


def explain_nothing(policy_input: PolicyInput) -> str:  # noqa: ARG001
    """Return no clause: `explain_levels` of a policy whose reason is the detector's."""
    return ""


def allow_most(policy_input: PolicyInput) -> int:
    """Return the steps of a round that the learning rate allows: `decide_local_steps` of a policy
    that does not choose.
    """
    return policy_input.most_local_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One policy; its functions are pure."""

    summary: str
    decide_levels: Callable[[PolicyInput], Mapping[str, str]]
    """Returns the name of a level of the ladder, `none` or `half`, for every layer."""
    options: Mapping[str, Option] = field(default_factory=dict)
    observe_report: Callable[[PolicyInput], Mapping[str, Any]] = keep_state
    """Returns the policy's state after a report, as JSON."""
    explain_levels: Callable[[PolicyInput], str] = explain_nothing
    """Returns a clause for the reason of the decision, given the state after the report."""
    decide_local_steps: Callable[[PolicyInput], int] = allow_most
    """Returns the steps of a round, from 1 to `most_local_steps`."""
    uses_costs: bool = False
    """Whether the policy decides by measured times, such as `cost_s_by_layer`, which cost some
    seconds to measure.
    """
    uses_sent_share: bool = False
    """Whether the policy decides by `sent_share_by_layer`, measured in some steps of a window."""
    is_planned: bool = False
    """Whether its levels depend on epoch and learning rate alone, so that a job's are known before
    it runs.
    """

    def initial_levels(
        self,
        regime_by_layer: Mapping[str, Regime],
        epoch: int,
        options: Mapping[str, object],
        *,
        size_by_layer: Mapping[str, int],
    ) -> dict[str, str]:
        """Return the levels before any report, on ladders of `low` and `high`.

        `options` are checked, with all defaults filled in; `size_by_layer` is the number of values
        of each layer.
        """
        policy_input = PolicyInput(
            epoch=epoch,
            regime_by_layer=regime_by_layer,
            ladder_by_layer=dict.fromkeys(regime_by_layer, _LADDER),
            size_by_layer=size_by_layer,
            options=options,
        )
        return dict(self.decide_levels(policy_input))


POLICIES: Mapping[str, Policy] = {
    "two_level": Policy(
        summary="light compression in critical regimes, strong elsewhere (arXiv:2010.16248)",
        decide_levels=two_level.decide_levels,
    ),
    "fixed": Policy(
        summary="one level for the whole run",
        decide_levels=fixed.decide_levels,
        options={"level": Option(default="high", choices=LEVEL_NAMES, help="level of every layer")},
        is_planned=True,
    ),
    "scheduled": Policy(
        summary="a table of levels by epoch",
        decide_levels=scheduled.decide_levels,
        options={
            "table": TableOption(
                choices=LEVEL_NAMES,
                help="first epoch (from 0, as text) to level, beginning at epoch 0",
            )
        },
        is_planned=True,
    ),
    "by_rate": Policy(
        summary="one level stronger each time the learning rate has fallen by so much",
        decide_levels=by_rate.decide_levels,
        options={
            "fall": Option(
                default=2.0,
                minimum=1.01,
                maximum=1e6,
                help="factor by which the learning rate falls for each stronger level",
            )
        },
        explain_levels=by_rate.explain_levels,
        is_planned=True,
    ),
    "cost_aware": Policy(
        summary=(
            "the fastest level that the regime allows, by measured costs; no compression where"
            " that is faster; rounds of local steps as short as waiting allows"
        ),
        decide_levels=cost_aware.decide_levels,
        options={
            "saving": Option(
                default=0.05,
                minimum=0.0,
                maximum=0.9,
                help="fraction of the cost in force that another level must save",
            ),
            "wait_share": Option(
                default=0.05,
                minimum=0.001,
                maximum=0.9,
                help=(
                    "share of a round of local steps that waiting for its exchange may take; rounds"
                    " are as short as it allows"
                ),
            ),
        },
        observe_report=cost_aware.observe_report,
        explain_levels=cost_aware.explain_levels,
        decide_local_steps=round_length.decide_length,
        uses_costs=True,
    ),
    "legacy": Policy(
        summary=(
            "strong for large layers, and late in training for smaller ones too (LEGACY, ICLR 2026)"
        ),
        decide_levels=legacy.decide_levels,
        explain_levels=legacy.explain_levels,
        is_planned=True,
        options={
            "early_size": Option(
                default=1 << 20,
                minimum=1,
                help="number of values from which a layer is compressed strongly at first",
            ),
            "late_size": Option(
                default=1 << 14,
                minimum=1,
                help=(
                    "number of values from which a layer is compressed strongly later; above"
                    " `early_size`, layers become lighter"
                ),
            ),
            "late_from": Option(
                default=10, minimum=0, help="first epoch (from 0) in which `late_size` applies"
            ),
        },
    ),
    "entropy": Policy(
        summary=(
            "one level stronger each time a layer's gradient entropy has fallen by so much (EDGC,"
            " arXiv:2511.10333)"
        ),
        decide_levels=entropy.decide_levels,
        options={
            "drop": Option(
                default=0.7,
                minimum=0.01,
                maximum=100.0,
                help=(
                    "nats below the entropy of the first window for each stronger level; 0.7 is"
                    " half of the gradient's norm"
                ),
            )
        },
        observe_report=entropy.observe_report,
        explain_levels=entropy.explain_levels,
    ),
    "gain": Policy(
        summary=(
            "the strongest level that still sends most of a layer's gradient, or no compression if"
            " all send less; methods without residuals stay at their lightest level (GraVAC,"
            " arXiv:2305.12201)"
        ),
        decide_levels=gain.decide_levels,
        options={
            "least": Option(
                default=0.5,
                minimum=0.01,
                maximum=1.0,
                help="smallest share of a layer's energy (squared norm) that a level may send",
            ),
            "retry": Option(
                default=5,
                minimum=1,
                maximum=100_000,
                help="windows until a level that sent too little is tried again",
            ),
        },
        observe_report=gain.observe_report,
        explain_levels=gain.explain_levels,
        uses_sent_share=True,
    ),
    "adaqs": Policy(
        summary=(
            "strong at first, lighter level by level as a layer's signal-to-noise ratio falls"
            " (AdaQS, ICASSP 2020)"
        ),
        decide_levels=adaqs.decide_levels,
        options={
            "drop": Option(
                default=0.5,
                minimum=0.01,
                maximum=0.99,
                help=(
                    "fraction of its reference to which a layer's signal-to-noise ratio must fall"
                    " before the layer moves one level lighter"
                ),
            )
        },
        observe_report=adaqs.observe_report,
    ),
}


def check_policy(name: str, options: Mapping[str, object]) -> dict[str, Any]:
    """Return all options of a policy, the given ones checked and the others by default.

    Raises:
        ConfigError: the policy or an option is unknown, or an option refuses its value.
    """
    if name not in POLICIES:
        raise ConfigError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}")
    return check_options(options, POLICIES[name].options, f"policy {name}")


__all__ = ["POLICIES", "UNCOMPRESSED", "Policy", "PolicyInput", "check_policy"]
