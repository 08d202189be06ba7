"""What a policy is told: one record, so that a new field disturbs no policy that is there already;
stdlib only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accordion.messages import DecisionCause, Level, Regime


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a policy decides from.

    The fields from `cause` on tell what one report brought. They are filled for `observe` only:
    levels are asked for without a report too (at the start, after an override, after loading) and
    must then be the same, so a policy keeps in its state what it needs of a report.
    """

    epoch: int
    """First epoch that the levels hold for."""
    regime_by_layer: Mapping[str, Regime]
    ladder_by_layer: Mapping[str, tuple[Level, ...]]
    """Rungs of each layer from the lightest to the strongest; layers may have different methods."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The policy's own, as the settings give them and `check` accepted them."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """What the policy's `observe` returned last: JSON, without numbers that are not finite; empty
    at the start.
    """
    cause: DecisionCause | None = None
    """What the detector made of the report."""
    statistic_by_layer: Mapping[str, float] | None = None
    """As in the report, likewise the next two; None while the window is open."""
    rms_by_layer: Mapping[str, float] | None = None
    cost_s_by_layer: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    change_by_layer: Mapping[str, float | None] = field(default_factory=dict)
    """Relative change of the statistic; None where nothing was compared."""


__all__ = ["Situation"]
