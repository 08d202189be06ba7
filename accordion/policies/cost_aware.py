"""The fastest level that the regime allows, by measured costs.

    cost(choice) = seconds for which a step waits for its exchanges, summed over the layers
                   + seconds by which the choice slowed the rest of the step down

The choices are `none`, `half` and the levels of the ladders, the same for all stable layers; a
critical layer takes the lightest level of its ladder in place of a stronger one, as in
arXiv:2010.16248. A cheaper choice replaces the one in force if it saves at least `saving` of its
cost. Before costs are measured, and where they cannot be, the levels are those of `two_level`.

The waits cover encoding, decoding, and communication that the backward pass does not hide
(`Report.cost_s_by_layer`). What it hides is not free where it takes a processor from the backward
pass. No model knows how much, so it is measured: when a choice comes into force, the rest of its
steps is compared with that of the choice before. The result is kept until the link changes.

"On the Utility of Gradient Compression in Distributed Training
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

NOISE = 0.03
"""Fraction by which the medians of two windows of equal steps differ on a quiet machine."""
LINK_CHANGE_FACTOR = 2.0
"""Factor by which the bandwidth must change before what other choices took is forgotten; two probes
of a fast link may differ by a third.
"""
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
    """Return the choice in force, and what is known of every choice, after a report."""
    waits = _sum_waits(policy_input)
    if not waits:
        return policy_input.state
    before = policy_input.state.get("choice")
    bytes_per_s = policy_input.link.get("bytes_per_s")
    rest_s = _measure_rest(policy_input, bytes_per_s)
    slowdowns = _slowdowns(rest_s)
    costs = {name: wait_s + slowdowns.get(name, 0.0) for name, wait_s in waits.items()}
    choice = min(costs, key=lambda name: costs[name])
    saving = float(policy_input.options["saving"])
    if before in costs and costs[choice] > (1.0 - saving) * costs[before]:
        choice = before
    return {
        "choice": choice,
        "cost_s": waits,
        "rest_s": rest_s,
        "bytes_per_s": bytes_per_s,
        "last_predicted_s": policy_input.state.get("cost_s", {}).get(before),
        "last_measured_s": policy_input.exchange_wait_s,
    }


def explain_levels(policy_input: PolicyInput) -> str:
    """Return in one clause the choice, the wait of each, the link, which choices slowed the rest of
    the step down, and the last prediction beside the measurement.
    """
    state = policy_input.state
    if "choice" not in state:
        return (
            "no costs are measured yet, so levels follow the regimes; measuring needs two workers"
            " or more, on CPUs, and buckets_per_exchange auto"
        )
    costs = ", ".join(
        f"{name} {_format_ms(seconds)}"
        for name, seconds in sorted(state["cost_s"].items(), key=lambda item: item[1])
    )
    text = f"{state['choice']} is chosen because a step waits for its exchanges {costs}"
    if "latency_s" in policy_input.link:
        bytes_per_s = policy_input.link.get("bytes_per_s", math.inf)
        text += f" at {format_link(policy_input.link['latency_s'], bytes_per_s)}"
    for name, seconds in _slowdowns(state.get("rest_s", {})).items():
        text += f"; {name} slowed the rest of the step down by {_format_ms(seconds)}"
    predicted_s, measured_s = state["last_predicted_s"], state["last_measured_s"]
    if predicted_s is not None and measured_s is not None:
        text += f"; predicted {_format_ms(predicted_s)}, measured {_format_ms(measured_s)}"
    return text


def _measure_rest(policy_input: PolicyInput, bytes_per_s: float | None) -> dict[str, float]:
    """Return the seconds of a step beside its wait, by the choices that were in force.

    Whatever changes this of the choice in force, such as the batch, changes it alike for the
    others, so two choices are compared as they were when one followed the other.
    """
    state = policy_input.state
    # Before the first choice, jobs are at their lightest level.
    choice = state.get("choice") or next(iter(policy_input.ladder_by_layer.values()))[0].name
    known: dict[str, float] = dict(state.get("rest_s", {}))
    if _has_changed(state.get("bytes_per_s"), bytes_per_s):
        known = {name: seconds for name, seconds in known.items() if name == choice}
    if policy_input.step_s is None or policy_input.exchange_wait_s is None:
        return known
    rest_s = max(0.0, policy_input.step_s - policy_input.exchange_wait_s)
    before_s = known.get(choice, 0.0)
    factor = rest_s / before_s if before_s > 0.0 else 1.0
    return {**{name: factor * seconds for name, seconds in known.items()}, choice: rest_s}


def _has_changed(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is not now
    return max(before, now) > LINK_CHANGE_FACTOR * min(before, now)


def _slowdowns(rest_s: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds, beyond noise, by which choices slow the rest of a step down."""
    least_s = (1.0 + NOISE) * min(rest_s.values(), default=0.0)
    return {name: seconds - least_s for name, seconds in rest_s.items() if seconds > least_s}


def _sum_waits(policy_input: PolicyInput) -> dict[str, float]:
    """Return the seconds for which a step waits at each choice; empty if one is missing."""
    measured = policy_input.cost_s_by_layer
    names = [level.name for level in next(iter(policy_input.ladder_by_layer.values()), ())]
    waits = {
        choice: sum(
            measured.get(layer, {}).get(_allowed_level(policy_input, layer, choice), math.nan)
            for layer in policy_input.regime_by_layer
        )
        for choice in (*UNCOMPRESSED_CHOICES, *names)
    }
    return waits if measured and all(map(math.isfinite, waits.values())) else {}


def _allowed_level(policy_input: PolicyInput, layer: str, choice: str) -> str:
    lightest = policy_input.ladder_by_layer[layer][0].name
    is_light = choice in (*UNCOMPRESSED_CHOICES, lightest)
    return choice if is_light or policy_input.regime_by_layer[layer] == "stable" else lightest


def _format_ms(seconds: float) -> str:
    return f"{float(f'{1e3 * seconds:.3g}'):g} ms"
