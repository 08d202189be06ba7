"""Which value of a metric is better, and what a history of it amounts to; pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SMALLER_IS_BETTER = frozenset(
    (
        *("bpc", "brier", "cer", "eer", "err", "error", "errors", "fid", "loss", "losses"),
        *("mae", "mape", "mse", "nll", "perplexity", "ppl", "rmse", "wer"),
    )
)
"""Words in the names of metrics that training lowers."""
_FACTORS = frozenset({"scale", "scaling", "weight"})
"""Last words in the names of factors, such as `loss_scale`, which are no measure of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """Value of a metric after an epoch."""

    epoch: int
    value: float


def get_objective_mode(metric: str, spec: Mapping[str, Any]) -> str | None:
    """Return `min` or `max`, as the job's objective says; None if it does not name the metric."""
    objective = spec.get("objective")
    if not isinstance(objective, Mapping) or objective.get("metric") != metric:
        return None
    return "min" if objective.get("mode") == "min" else "max"


def is_smaller_better(metric: str, mode: str | None) -> bool:
    """Whether a smaller value is better: as the mode of an objective says, otherwise by the words
    of the name.
    """
    if mode is not None:
        return mode == "min"
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", metric).lower()
    words = re.split(r"[^a-z0-9]+", snake)
    return words[-1] not in _FACTORS and not _SMALLER_IS_BETTER.isdisjoint(words)


def name_direction(*, smaller: bool) -> str:
    """Return which value counts as the best."""
    return "smallest" if smaller else "largest"


def choose_main_metric(names: Iterable[str], spec: Mapping[str, Any]) -> str | None:
    """Return the metric that tells most about a job: that of its objective, the accuracy, the loss,
    or another one; None if there is none.
    """
    known = list(dict.fromkeys(names))
    objective = spec.get("objective")
    wanted = objective.get("metric") if isinstance(objective, Mapping) else None
    return next((name for name in (wanted, "accuracy", "loss", *known) if name in known), None)


def list_values(metric: str, history: Iterable[tuple[int, Mapping[str, Any]]]) -> list[MetricValue]:
    """Return the finite values of a metric from epochs and their metrics."""
    found = ((epoch, metrics.get(metric)) for epoch, metrics in history)
    return [
        MetricValue(epoch=epoch, value=value)
        for epoch, value in found
        if value is not None and math.isfinite(value)
    ]


def find_best(values: Sequence[MetricValue], *, smaller: bool) -> MetricValue | None:
    """Return the best value, the first of equal ones; None if there is none."""
    sign = 1 if smaller else -1
    return min(values, key=lambda one: sign * one.value, default=None)


def find_reached(
    values: Sequence[MetricValue], goal: float, *, smaller: bool
) -> MetricValue | None:
    """Return the first value that is at least as good as the goal; None if none is."""
    return next(
        (one for one in values if (one.value <= goal if smaller else one.value >= goal)), None
    )
