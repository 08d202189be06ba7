"""How a job's objective develops from epoch to epoch: whether it improved, and whether training
ends because it no longer does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from accordion_workers.spec.objective import ObjectiveSpec, check_metric


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveProgress:
    """Values of the objective's metric up to now; equal on all ranks, and part of checkpoints."""

    newest: float | None = None
    """Value after the last finished epoch; None if it was not finite or not measured, or no epoch
    is finished.
    """
    best: float | None = None
    """Value from which the next improvement is counted; None before the first finite one."""
    stale_epochs: int = 0
    """Evaluated epochs since the last improvement."""

    def after(self, objective: ObjectiveSpec, value: float | None) -> ObjectiveProgress:
        """Return the progress after one more evaluated epoch; `value` is None if it was not
        finite.
        """
        if value is None or not math.isfinite(value):
            return ObjectiveProgress(best=self.best, stale_epochs=self.stale_epochs + 1)
        if self.best is None or objective.is_better(value, self.best):
            return ObjectiveProgress(newest=value, best=value)
        return ObjectiveProgress(newest=value, best=self.best, stale_epochs=self.stale_epochs + 1)

    def after_unmeasured(self) -> ObjectiveProgress:
        """Return the progress after one more epoch that was not evaluated."""
        return replace(self, newest=None)

    @property
    def has_improved(self) -> bool:
        """Whether the last finished epoch was better than all before it."""
        return self.newest is not None and self.stale_epochs == 0

    def is_exhausted(self, objective: ObjectiveSpec | None) -> bool:
        """Return whether training ends because the metric has not improved for too long."""
        patience = None if objective is None else objective.patience
        return patience is not None and self.stale_epochs >= patience


def read_objective(
    objective: ObjectiveSpec, metrics: Mapping[str, float], *, measured: Collection[str]
) -> float | None:
    """Return the value of the objective's metric; None if it is not finite.

    Args:
        objective: names the metric.
        metrics: finite metrics of the epoch.
        measured: names of all metrics, also of those that are not finite.

    Raises:
        ValueError: the evaluation does not measure this metric.
    """
    if not measured:
        raise ValueError(
            f"objective.metric is {objective.metric!r}, and the epoch ended without metrics; give"
            f" it to session.end_epoch({objective.metric}=...), or let a framework's trainer"
            ' evaluate every epoch (Transformers: eval_strategy="epoch" and compute_metrics)'
        )
    check_metric(objective, measured, "the evaluation")
    return metrics.get(objective.metric)


__all__ = ["ObjectiveProgress", "read_objective"]
