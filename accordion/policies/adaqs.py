"""AdaQS: less compression as a layer's signal-to-noise ratio falls.

Guo et al., "Accelerating distributed deep learning by adaptive gradient quantization", ICASSP 2020.

    noise^2 = rms^2 - norm^2        ratio = norm / noise        of a layer, over one window

`norm` is the norm of the window's mean gradient and `rms` the root mean square of the norms of
single gradients, so the ratio is the mean-to-deviation ratio of the whole layer. A layer starts on
its strongest level. When its ratio has fallen to `drop` times the reference, the layer moves one
level lighter and the ratio becomes the new reference. A higher ratio becomes the reference at once.
No layer returns to a stronger level.

If a report has no `rms`, the noise is assumed to be constant, so the ratio falls with the norm. Two
differences from the paper: levels may be of any method, not only quantization; and a window after a
change of batch or world size, whose noise differs, only sets a new reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from accordion.policies.policy_input import PolicyInput


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerState:
    """State of one layer."""

    rungs: int = 0
    """Number of levels that the layer has moved from the strongest one. The name is part of saved
    states.
    """
    reference: float | None = None
    """Ratio that the next one is compared with; None before the first."""
    noise: bool = False
    """Whether the reference is a ratio to measured noise; False for a plain norm."""


def decide_levels(policy_input: PolicyInput) -> dict[str, str]:
    """Return the level of each layer, by the number of levels that it has moved."""
    return {
        layer: ladder[max(0, len(ladder) - 1 - _layer_state(policy_input.state, layer).rungs)].name
        for layer, ladder in policy_input.ladder_by_layer.items()
    }


def observe_report(policy_input: PolicyInput) -> Mapping[str, Any]:
    """Return the state of each layer after a report."""
    norms, rms = policy_input.statistic_by_layer, policy_input.rms_by_layer
    if norms is None:
        return policy_input.state
    drop = float(policy_input.options["drop"])
    after = {}
    for layer, norm in norms.items():
        before = _layer_state(policy_input.state, layer)
        ratio = _signal_to_noise(norm, None if rms is None else rms.get(layer))
        noise = rms is not None
        if policy_input.cause == "skip" or before.noise != noise:
            before = replace(before, reference=None, noise=noise)
        after[layer] = asdict(_update_layer(before, ratio, drop=drop))
    return after


def _layer_state(state: Mapping[str, Any], layer: str) -> _LayerState:
    return _LayerState(**state[layer]) if layer in state else _LayerState()


def _signal_to_noise(norm: float, rms: float | None) -> float | None:
    """Return the ratio; None without a signal, or if the noise is too small to be measured."""
    if not 0.0 < norm < math.inf:
        return None
    if rms is None:
        return norm
    # The quotient is squared instead of the norms, whose squares may underflow. A sketched norm may
    # exceed the rms.
    share = norm / rms if 0.0 < rms < math.inf else 1.0
    return share / math.sqrt((1.0 - share) * (1.0 + share)) if 0.0 < share < 1.0 else None


def _update_layer(before: _LayerState, ratio: float | None, *, drop: float) -> _LayerState:
    if ratio is None:
        return before
    if before.reference is None:
        return replace(before, reference=ratio)
    if ratio <= drop * before.reference:
        return replace(before, rungs=before.rungs + 1, reference=ratio)
    return replace(before, reference=max(before.reference, ratio))
