"""Cost of elasticity so far, and how the reports of a worker group change it; pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

RESIZE_CAUSES = ("ordered", "joined", "leaving")
RECOVERY_CAUSES = ("infrastructure", "job")
"""Names of the causes in `ResizeRecord` and `FailureRecord`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticityStats:
    """Cost of the worker group changes of an attempt or a job."""

    resizes: dict[str, int] = field(default_factory=dict)
    """Number of resizes by cause (`RESIZE_CAUSES`)."""
    recoveries: dict[str, int] = field(default_factory=dict)
    """Number of recoveries by cause (`RECOVERY_CAUSES`)."""
    seconds_lost: float = 0.0
    """Seconds without a step, from the last step of a group to the start of the next group."""
    steps_rolled_back: int = 0
    """Steps repeated because they followed the checkpoint."""


def count_resize(tally: ElasticityStats, cause: str) -> ElasticityStats:
    """Count a group that replaced one of another size."""
    return replace(tally, resizes=_increment_by_cause(tally.resizes, cause))


def count_recovery(tally: ElasticityStats, cause: str) -> ElasticityStats:
    """Count a group that replaced a failed one."""
    return replace(tally, recoveries=_increment_by_cause(tally.recoveries, cause))


def add_cost(
    tally: ElasticityStats, seconds_lost: float, steps_rolled_back: int
) -> ElasticityStats:
    """Add the cost that a new group reported."""
    return replace(
        tally,
        seconds_lost=tally.seconds_lost + seconds_lost,
        steps_rolled_back=tally.steps_rolled_back + steps_rolled_back,
    )


def _increment_by_cause(counts: dict[str, int], cause: str) -> dict[str, int]:
    return {**counts, cause: counts.get(cause, 0) + 1}
