"""The part of a job's specification that names the metric by which models are compared."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from pydantic import Field

from accordion_workers.spec.types import Number, Strict, Whole

Mode = Literal["min", "max"]


class ObjectiveSpec(Strict):
    """The metric that tells how good the model is. The checkpoint of the epoch with the best value
    is kept, and training may end when the metric stops improving.
    """

    metric: str = Field(min_length=1, max_length=100)
    """Metric of the evaluation, such as `accuracy` or `loss`
    (`GET /api/v1/tasks`); a script gives its own to `session.end_epoch(accuracy=...)`.
    """
    mode: Mode
    """Which value is better: the smaller one (`min`) or the larger one (`max`)."""
    patience: Whole | None = Field(default=None, ge=1, le=100_000)
    """Evaluations in a row without an improvement after which training ends. Null: all epochs are
    trained.
    """
    min_delta: Number = Field(default=0.0, ge=0)
    """Smallest difference, in the metric's unit, that counts as an improvement."""

    def is_better(self, value: float, best: float) -> bool:
        """Return whether a value improves on the best one."""
        gain = value - best if self.mode == "max" else best - value
        return gain > 0 and gain >= self.min_delta


def check_metric(objective: ObjectiveSpec | None, metrics: Collection[str], source: str) -> None:
    """Check that the metric is one of those of `source`; an empty collection is unknown.

    Raises:
        ValueError: it is not.
    """
    if objective is not None and metrics and objective.metric not in metrics:
        raise ValueError(
            f"objective.metric is {objective.metric!r}, and {source} has"
            f" {', '.join(sorted(metrics))}; give one of them"
        )


def describe_early_end(objective: ObjectiveSpec | None) -> str:
    """Describe in one sentence why training ended before its last epoch."""
    if objective is None:
        return "training ended early"
    times = "1 evaluation" if objective.patience == 1 else f"{objective.patience} evaluations"
    return f"training ended early: {objective.metric} did not improve in {times}"


__all__ = ["Mode", "ObjectiveSpec", "check_metric", "describe_early_end"]
