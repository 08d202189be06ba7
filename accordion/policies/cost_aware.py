"""The fastest level that the regime allows, by measured costs.

    cost(choice) = sum over the layers of the seconds that the layer adds to a step

The choices are `none`, `half` and the levels of the ladders, the same for all stable layers; a
critical layer takes the lightest level of its ladder in place of a stronger one, as in
arXiv:2010.16248. A cheaper choice replaces the one in force if it saves at least `saving` of its
cost. Before costs are measured, and where they cannot be, the levels are those of `two_level`.

The costs cover encoding, decoding, and communication that the backward pass does not hide
(`Report.cost_s_by_layer`). "On the Utility of Gradient Compression in Distributed Training
Systems" (MLSys 2022) found that compression is faster in few set-ups of data centres, so the answer
may well be not to compress.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from accordion.link_model import format_link
from accordion.policies import two_level
from accordion.policies.policy_input import PolicyInput

UNCOMPRESSED_CHOICES = ("none", "half")
"""Choices beside the ladders' levels; every regime allows them."""


def decide_levels(policy_input: PolicyInput) -> dict[str, str]:
    """Return the level of each layer under the choice in force."""
    choice = policy_input.state.get("choice")
    if choice is None:
        return two_level.decide_levels(policy_input)
    return {
        layer: _allowed_level(policy_input, layer, choice) for layer in policy_input.regime_by_layer
    }


def observe_report(policy_input: PolicyInput) -> Mapping[str, Any]:
    """Return the choice in force and the cost of every choice after a report."""
    costs = _total_costs(policy_input)
    if not costs:
        return policy_input.state
    choice, before = min(costs, key=lambda name: costs[name]), policy_input.state.get("choice")
    saving = float(policy_input.options["saving"])
    if before in costs and costs[choice] > (1.0 - saving) * costs[before]:
        choice = before
    predicted_s = policy_input.state.get("cost_s", {}).get(before)
    return {
        "choice": choice,
        "cost_s": costs,
        "last_predicted_s": predicted_s,
        "last_measured_s": policy_input.exchange_wait_s,
    }


def explain_levels(policy_input: PolicyInput) -> str:
    """Return in one clause the choice, the cost of each, the link, and the last prediction beside
    the measurement.
    """
    state = policy_input.state
    if "choice" not in state:
        return "no costs are measured yet, so levels follow the regimes"
    costs = ", ".join(
        f"{name} {_format_ms(seconds)}"
        for name, seconds in sorted(state["cost_s"].items(), key=lambda item: item[1])
    )
    text = f"{state['choice']} is chosen because a step waits for its exchanges {costs}"
    if "latency_s" in policy_input.link:
        bytes_per_s = policy_input.link.get("bytes_per_s", math.inf)
        text += f" at {format_link(policy_input.link['latency_s'], bytes_per_s)}"
    predicted_s, measured_s = state["last_predicted_s"], state["last_measured_s"]
    if predicted_s is not None and measured_s is not None:
        text += f"; predicted {_format_ms(predicted_s)}, measured {_format_ms(measured_s)}"
    return text


def _total_costs(policy_input: PolicyInput) -> dict[str, float]:
    """Return the seconds per step of each choice; empty if a cost is missing."""
    measured = policy_input.cost_s_by_layer
    names = [level.name for level in next(iter(policy_input.ladder_by_layer.values()), ())]
    totals = {
        choice: sum(
            measured.get(layer, {}).get(_allowed_level(policy_input, layer, choice), math.nan)
            for layer in policy_input.regime_by_layer
        )
        for choice in (*UNCOMPRESSED_CHOICES, *names)
    }
    return totals if measured and all(map(math.isfinite, totals.values())) else {}


def _allowed_level(policy_input: PolicyInput, layer: str, choice: str) -> str:
    lightest = policy_input.ladder_by_layer[layer][0].name
    is_light = choice in (*UNCOMPRESSED_CHOICES, lightest)
    return choice if is_light or policy_input.regime_by_layer[layer] == "stable" else lightest


def _format_ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
