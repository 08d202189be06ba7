"""Which value of a metric is better, and what a history of it amounts to; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SMALLER_IS_BETTER = ("loss", "perplexity", "error", "mae", "mse", "rmse")
"""Beginnings and ends of the names of metrics that training lowers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """Value of a metric after an epoch."""

    epoch: int
    value: float


def is_smaller_better(metric: str, spec: Mapping[str, Any]) -> bool:
    """Whether a smaller value is better: as the job's objective says, otherwise by the name."""
    objective = spec.get("objective")
    if isinstance(objective, Mapping) and objective.get("metric") == metric:
        return objective.get("mode") == "min"
    name = metric.lower()
    return name.startswith(_SMALLER_IS_BETTER) or name.endswith(_SMALLER_IS_BETTER)


def choose_main_metric(names: Iterable[str], spec: Mapping[str, Any]) -> str | None:
    """Return the metric that tells most about a job: that of its objective, the accuracy, another
    one, or the loss; None if there is none.
    """
    known = list(dict.fromkeys(names))
    objective = spec.get("objective")
    wanted = objective.get("metric") if isinstance(objective, Mapping) else None
    others = [name for name in known if name != "loss"]
    order = [wanted, "accuracy", *others, "loss"]
    return next((name for name in order if name in known), None)


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
