"""The record that a policy decides from, so that a new field changes no existing policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accordion.base.messages import DecisionCause, Level, Regime


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInput:
    """Input of a policy.

    The fields from `cause` on describe one report and are set for `observe_report` only. Levels are
    also decided without a report (at the start, after an override, after loading a state) and must
    then be the same, so a policy stores what it needs of a report in its state.
    """

    epoch: int
    """First epoch for which the levels hold."""
    regime_by_layer: Mapping[str, Regime]
    """Regimes in force: the detector's, or all critical while the batch has grown by more than the
    learning rate has fallen.
    """
    ladder_by_layer: Mapping[str, tuple[Level, ...]]
    """Levels of each layer from the lightest to the strongest; methods may differ by layer."""
    size_by_layer: Mapping[str, int]
    """Number of values of each layer."""
    rate_fall: float = 1.0
    """Ratio of the highest learning rate so far to the one from now on."""
    most_local_steps: int = 1
    """Steps of a round that the learning rate allows from now on; 1 without local steps, and in the
    start of a run.
    """
    options: Mapping[str, Any] = field(default_factory=dict)
    """All options of the policy, checked, with defaults filled in."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """What `observe_report` last returned: JSON with finite numbers only; empty at the start."""
    cause: DecisionCause | None = None
    """Conclusion of the detector from the report."""
    statistic_by_layer: Mapping[str, float] | None = None
    """Norm of the window's mean gradient, as in the report; None while the window is open."""
    rms_by_layer: Mapping[str, float] | None = None
    """Root mean square of the gradient norms, as in the report; None while the window is open."""
    sent_share_by_layer: Mapping[str, float] = field(default_factory=dict)
    """Fraction of each layer's energy that compression sent, as in the report, without layers with
    an override; empty while the window is open.
    """
    level_by_layer: Mapping[str, str] = field(default_factory=dict)
    """Names of the levels in force in the reported steps, overrides included."""
    world_size: int = 0
    global_batch: int = 0
    """Samples per step over all workers, as in the report; 0 if unknown."""
    cost_s_by_layer: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Measured seconds per step by layer and level, as in the report."""
    local_steps: int = 1
    """Steps of a round in the reported steps."""
    exchange_wait_s: float | None = None
    """Measured seconds for which a step waited for exchanges, as in the report."""
    step_s: float | None = None
    """Measured seconds of a step, as in the report."""
    beside_s: float | None = None
    """Measured seconds of encoding beside the backward pass, as in the report."""
    link: Mapping[str, float] = field(default_factory=dict)
    """Measured `latency_s` and `bytes_per_s`, as in the report."""
    change_by_layer: Mapping[str, float | None] = field(default_factory=dict)
    """Relative change of the statistic; None for a layer that was not compared."""


def count_levels(level_by_layer: Mapping[str, str]) -> str:
    """Return the number of layers at each level, such as `3 layers are at high and 1 at low`."""
    counts = Counter(level_by_layer.values())
    (first, number), *others = sorted(counts.items()) or [("none", 0)]
    text = f"{number} {'layer is' if number == 1 else 'layers are'} at {first}"
    rest = [f"{number} at {level}" for level, number in others]
    if not rest:
        return text
    return f"{', '.join([text, *rest[:-1]])} and {rest[-1]}"


__all__ = ["PolicyInput", "count_levels"]
