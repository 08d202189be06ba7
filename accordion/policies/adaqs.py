"""More precision as the gradient drowns in noise, after AdaQS (Guo et al., "Accelerating
distributed deep learning by adaptive gradient quantization", ICASSP 2020).

    noise^2 = rms^2 - norm^2        ratio = norm / noise        of a layer, over one window

`norm` is that of the window's mean gradient and `rms` the root mean square of single gradients'
norms, so that the ratio is the mean-to-deviation ratio of the layer as a whole. A layer starts on
its strongest rung. When its ratio has fallen to `drop` times the reference, it goes one rung
lighter, and that ratio is the new reference. The reference follows a ratio that rises. No layer
ever goes back to a stronger rung.

Where a report carries no `rms`, the noise is taken as constant, and the ratio falls as the norm
does. Departures from the paper: it quantizes, here the rungs may be of any method; and a window
after a change of batch or world size, whose noise is another, only gives a new reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from accordion.options import Option, check_options, options_schema
from accordion.policies.situation import Situation

OPTIONS: Mapping[str, Option] = {
    "drop": Option(
        default=0.5,
        least=0.01,
        most=0.99,
        help=(
            "part of its reference to which a layer's signal-to-noise ratio must fall for one rung"
            " less compression"
        ),
    )
}
SCHEMA: Mapping[str, object] = options_schema(OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Followed:
    """One layer as far as it was followed."""

    rungs: int = 0
    """Rungs that it has come down from the strongest."""
    reference: float | None = None
    """Ratio that the next one is compared with; None before the first."""
    noise: bool = False
    """Whether the reference is a ratio to measured noise, or a plain norm."""


def choose(situation: Situation) -> dict[str, str]:
    """The rung of each layer."""
    return {
        layer: ladder[max(0, len(ladder) - 1 - _followed(situation.state, layer).rungs)].name
        for layer, ladder in situation.ladder_by_layer.items()
    }


def observe(situation: Situation) -> Mapping[str, Any]:
    """The state after a report: by layer, how far it came down and what its next ratio is compared
    with.
    """
    norms, rms = situation.statistic_by_layer, situation.rms_by_layer
    if norms is None:
        return situation.state
    drop = float(check_options(situation.options, OPTIONS, "policy adaqs")["drop"])
    after = {}
    for layer, norm in norms.items():
        before, ratio = (
            _followed(situation.state, layer),
            _ratio(norm, None if rms is None else rms.get(layer)),
        )
        noise = rms is not None
        if situation.cause == "skip" or before.noise != noise:
            before = replace(before, reference=None, noise=noise)
        after[layer] = asdict(_follow(before, ratio, drop=drop))
    return after


def check(options: Mapping[str, object], rungs: Sequence[str]) -> None:  # noqa: ARG001
    """Accept `drop`, a part between 0 and 1.

    Raises:
        ConfigError: another option, or a value out of range.
    """
    check_options(options, OPTIONS, "policy adaqs")


def _followed(state: Mapping[str, Any], layer: str) -> _Followed:
    return _Followed(**state[layer]) if layer in state else _Followed()


def _ratio(norm: float, rms: float | None) -> float | None:
    """Signal over noise; None where there is no signal, or less noise than can be told from
    none.
    """
    if not 0.0 < norm < math.inf:
        return None
    if rms is None:
        return norm
    # Through the quotient, since the squares of small norms vanish; a sketched norm may come out
    # above the rms.
    share = norm / rms if 0.0 < rms < math.inf else 1.0
    return share / math.sqrt((1.0 - share) * (1.0 + share)) if 0.0 < share < 1.0 else None


def _follow(before: _Followed, ratio: float | None, *, drop: float) -> _Followed:
    if ratio is None:
        return before
    if before.reference is None:
        return replace(before, reference=ratio)
    if ratio <= drop * before.reference:
        return replace(before, rungs=before.rungs + 1, reference=ratio)
    return replace(before, reference=max(before.reference, ratio))
