"""Shortest round of local steps whose exchange costs a small share of its time; pure.

    needed = exchange_s / step_s * (1 - share) / share

Waiting for the exchange that ends a round of `needed` steps takes `share` of the round. Where
gradients are exchanged in every step, the wait that the backward pass does not hide stands for the
exchange. So the first length may be too short: in rounds nothing hides the exchange, it is measured
as a whole, and the next length follows from it. For the same reason rounds end, in favor of an
exchange in every step, only once a whole exchange is as cheap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from accordion.policies.policy_input import PolicyInput

MARGIN = 0.2
"""Part by which a length may be too short or too long before another one replaces it: four times
the noise of a window's medians.
"""
_MOST = 1_000_000
"""Longest round that is asked for; `local_steps` of a job file allows no longer ones."""


def observe_round(policy_input: PolicyInput, wait_s: float | None) -> Mapping[str, Any]:
    """Return the policy's state about rounds after a report; unchanged if nothing was measured.

    Args:
        policy_input: input with the report.
        wait_s: seconds for which a step waits for exchanges, if there are rounds on average over
            their steps; None if unknown.
    """
    state: Mapping[str, Any] = policy_input.state.get("rounds", {})
    measured_s, whole_s = policy_input.exchange_wait_s, policy_input.step_s
    if wait_s is None or measured_s is None or whole_s is None or whole_s <= measured_s:
        return state
    step_s, exchange_s = whole_s - measured_s, wait_s * policy_input.local_steps
    share = float(policy_input.options["wait_share"])
    needed = exchange_s / step_s * (1.0 - share) / share
    length = int(state.get("length", 1))
    if not needed / (1.0 + MARGIN) <= length <= max(1, math.ceil((1.0 + MARGIN) * needed)):
        length = max(1, math.ceil(min(needed, _MOST)))
    return {"length": length, "exchange_s": exchange_s, "step_s": step_s}


def decide_length(policy_input: PolicyInput) -> int:
    """Return the steps of a round; 1, an exchange in every step, until waits are measured."""
    length = int(policy_input.state.get("rounds", {}).get("length", 1))
    return min(length, policy_input.most_local_steps)


def explain_length(policy_input: PolicyInput) -> str:
    """Return in one clause why rounds have their length; empty where no local steps are allowed."""
    most, state = policy_input.most_local_steps, policy_input.state.get("rounds")
    if most == 1:
        return ""
    if not state:
        return "gradients are exchanged in every step until it is measured how long steps wait"
    length = decide_length(policy_input)
    what = f"rounds have {length} steps" if length > 1 else "gradients are exchanged in every step"
    text = (
        f"{what} because an exchange delays them by {format_ms(state['exchange_s'])}, a step takes"
        f" {format_ms(state['step_s'])}, and waiting may take"
        f" {float(policy_input.options['wait_share']):.3g} of the time (wait_share)"
    )
    if state["length"] > most:
        text += f"; {state['length']} steps would be enough, but local_steps allows {most} now"
    return text


def format_ms(seconds: float) -> str:
    """Return seconds as text in milliseconds, such as `12 ms`."""
    return f"{float(f'{1e3 * seconds:.3g}'):g} ms"
