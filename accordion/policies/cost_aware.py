"""The fastest level that the regime allows, by measured costs.

    cost(choice) = predicted seconds for which a step waits for its exchanges
                   + measured seconds by which the choice slowed the rest of the step down

The choices are `none`, `half` and the levels of the ladders, the same for all stable layers; a
critical layer takes the lightest level of its ladder in place of a stronger one, as in
arXiv:2010.16248. A cheaper choice replaces the one in force if it saves at least `saving` of its
cost. Before costs are measured, and where they cannot be, the levels are those of `two_level`.

The waits cover encoding, decoding, and communication that the backward pass does not hide
(`Report.cost_s_by_layer`). What it hides is not free where it takes a processor from the backward
pass of some worker. No model knows how much, so it is measured: the rest of a step is the measured
step without the predicted wait, and when a choice comes into force, its rest is compared with that
of the choice before. An error of the prediction thus counts as a slowdown too. So a choice that
encodes nothing is tried once where the encoding beside the backward pass, if all of it slowed that
pass down, takes longer than the choice would wait in addition. One window may be
wrong, and circumstances change, so a choice that was left is tried again after `RETRY_REPORTS`
reports, and when the batch, the number of workers or the link has changed.

"On the Utility of Gradient Compression in Distributed Training
Systems" (MLSys 2022) found that compression is faster in few set-ups of data centres, so the answer
may well be not to compress.

With local steps the policy chooses the length of rounds too (`round_length`), never longer than the
learning rate allows. Until waits are measured, gradients are exchanged in every step. In rounds the
levels stay as they were chosen before, because no backward pass hides an exchange there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from accordion.base.link_model import format_link
from accordion.policies import two_level
from accordion.policies.policy_input import PolicyInput
from accordion.policies.round_length import explain_length, format_ms, observe_round

NOISE = 0.05
"""Fraction by which the medians of two windows of equal jobs differ on a quiet machine."""
RETRY_REPORTS = 30
"""Reports after which a choice that slowed steps down is tried again."""
LINK_CHANGE_FACTOR = 2.0
"""Factor by which the bandwidth must change, in two reports running, before what was measured of
other choices is dropped; two probes of a fast link may differ by a third.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rests:
    """Measured seconds of a step without the predicted wait, by choice; comparable."""

    seconds: Mapping[str, float]
    world_size: int
    global_batch: int
    bytes_per_s: float | None
    """Bandwidth when the first choice was measured."""
    last_bytes_per_s: float | None
    """Bandwidth in the last report."""
    reports: int = 0
    """Reports since the first choice was measured."""


def observe_report(policy_input: PolicyInput) -> Mapping[str, Any]:
    """Return the choice in force, the length of rounds, and what is known of every choice, after a
    report.
    """
    if policy_input.local_steps > 1:
        return {
            **policy_input.state,
            "rounds": observe_round(policy_input, policy_input.exchange_wait_s),
        }
    state = _observe_levels(policy_input)
    if state.get("trial_s") is not None:  # beside a backward pass, which rounds do not have
        return {**state, "rounds": policy_input.state.get("rounds", {})}
    return {**state, "rounds": observe_round(policy_input, _next_wait_s(policy_input, state))}


def _observe_levels(policy_input: PolicyInput) -> Mapping[str, Any]:
    """Return the choice in force and what is known of every choice."""
    waits = _sum_waits(policy_input)
    if not waits:
        return policy_input.state
    state = policy_input.state
    measured = _measured_choice(policy_input, waits)
    rests = _add_rest(policy_input, measured, waits)
    slowdowns = _slowdowns(rests.seconds)
    trial_s = _trial_savings(policy_input, rests.seconds)
    costs = {
        name: max(0.0, wait_s + slowdowns.get(name, 0.0) - trial_s.get(name, 0.0))
        for name, wait_s in waits.items()
    }
    before, choice = state.get("choice"), min(costs, key=lambda name: costs[name])
    saving = float(policy_input.options["saving"])
    if before in costs and costs[choice] > (1.0 - saving) * costs[before]:
        choice = before
    return {
        "choice": choice,
        "cost_s": waits,
        "rests": asdict(rests),
        "trial_s": trial_s.get(choice),
        "last_predicted_s": state.get("cost_s", {}).get(measured),
        "last_measured_s": policy_input.exchange_wait_s,
    }


def explain_levels(policy_input: PolicyInput) -> str:
    """Return in one clause the choice, the wait of each, the link, which choices slowed the rest of
    the step down, the last prediction beside the measurement, and the length of rounds.
    """
    clauses = (_explain_choice(policy_input), explain_length(policy_input))
    return "; ".join(filter(None, clauses))


def _explain_choice(policy_input: PolicyInput) -> str:
    state = policy_input.state
    if "choice" not in state:
        return (
            "no costs are measured yet, so levels follow the regimes; measuring needs two workers"
            " or more, on CPUs, and buckets_per_exchange auto"
        )
    costs = ", ".join(
        f"{name} {format_ms(seconds)}"
        for name, seconds in sorted(state["cost_s"].items(), key=lambda item: item[1])
    )
    text = f"{state['choice']} is chosen because a step waits for its exchanges {costs}"
    if "latency_s" in policy_input.link and policy_input.local_steps == 1:
        bytes_per_s = policy_input.link.get("bytes_per_s", math.inf)
        text += f" at {format_link(policy_input.link['latency_s'], bytes_per_s)}"
    for name, seconds in _slowdowns(state.get("rests", {}).get("seconds", {})).items():
        text += f"; {name} slowed the rest of the step down by {format_ms(seconds)}"
    if (trial_s := state.get("trial_s")) is not None:
        text += (
            f"; it is tried, because encoding beside the backward pass took {format_ms(trial_s)}"
            " and may have slowed it down"
        )
    predicted_s, measured_s = state["last_predicted_s"], state["last_measured_s"]
    if predicted_s is not None and measured_s is not None:
        text += f"; predicted {format_ms(predicted_s)}, measured {format_ms(measured_s)}"
    return text


def _next_wait_s(policy_input: PolicyInput, state: Mapping[str, Any]) -> float | None:
    """Return the seconds for which a step will wait: as measured, or as predicted if the choice
    changes the levels.
    """
    levels = decide_levels(replace(policy_input, state=state))
    if policy_input.level_by_layer == levels or "choice" not in state:
        return policy_input.exchange_wait_s
    if _measured_choice(policy_input, state["cost_s"]) is None:  # an override stays in force
        return policy_input.exchange_wait_s
    return float(state["cost_s"][state["choice"]])


def _measured_choice(policy_input: PolicyInput, choices: Iterable[str]) -> str | None:
    """Return the choice whose levels were in force in the reported steps; None if none was, for
    example under an override.
    """
    levels = policy_input.level_by_layer
    # Several choices may give the same levels; the one that was made comes first.
    own = [policy_input.state["choice"]] if "choice" in policy_input.state else []
    return next(
        (
            choice
            for choice in (*own, *choices)
            if levels
            and all(
                levels.get(layer) == _allowed_level(policy_input, layer, choice)
                for layer in policy_input.regime_by_layer
            )
        ),
        None,
    )


def _add_rest(policy_input: PolicyInput, choice: str | None, waits: Mapping[str, float]) -> _Rests:
    """Return what is known of each choice, after a report of steps at `choice`.

    Where the rest of a step at a choice differs from the one measured before, circumstances have
    changed, and those of the other choices are shifted alike.
    """
    rests = _comparable_rests(policy_input)
    if choice is None or policy_input.step_s is None:
        return rests
    rest_s = max(0.0, policy_input.step_s - waits[choice])
    shift_s = rest_s - rests.seconds.get(choice, rest_s)
    shifted = {name: max(0.0, seconds + shift_s) for name, seconds in rests.seconds.items()}
    return replace(rests, seconds={**shifted, choice: rest_s})


def _comparable_rests(policy_input: PolicyInput) -> _Rests:
    """Return what earlier reports measured; without choices if it is too old, or if batch, workers
    or link have changed.
    """
    now = policy_input.link.get("bytes_per_s")
    fresh = _Rests(
        seconds={},
        world_size=policy_input.world_size,
        global_batch=policy_input.global_batch,
        bytes_per_s=now,
        last_bytes_per_s=now,
    )
    saved = policy_input.state.get("rests")
    if saved is None:
        return fresh
    rests = _Rests(**saved)
    is_same = (rests.world_size, rests.global_batch) == (fresh.world_size, fresh.global_batch)
    has_new_link = all(
        _has_changed(rests.bytes_per_s, speed) for speed in (rests.last_bytes_per_s, now)
    )
    if not is_same or has_new_link or rests.reports + 1 >= RETRY_REPORTS:
        return fresh
    return replace(rests, last_bytes_per_s=now, reports=rests.reports + 1)


def _has_changed(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is not now
    return max(before, now) > LINK_CHANGE_FACTOR * min(before, now)


def _slowdowns(rest_s: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds by which choices slow the rest of a step down, if it is beyond noise."""
    least_s = min(rest_s.values(), default=0.0)
    return {
        name: seconds - least_s
        for name, seconds in rest_s.items()
        if seconds > (1.0 + NOISE) * least_s
    }


def _trial_savings(policy_input: PolicyInput, rest_s: Mapping[str, float]) -> dict[str, float]:
    """Return the most by which the rest of a step may be shorter at choices that encode nothing and
    were not measured.
    """
    beside_s = policy_input.beside_s
    if not beside_s or not rest_s.keys() - set(UNCOMPRESSED_CHOICES):
        return {}
    return {name: beside_s for name in UNCOMPRESSED_CHOICES if name not in rest_s}


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
