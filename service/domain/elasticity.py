"""What elasticity cost so far: a record, and how a worker group's words change it; pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

RESIZE_CAUSES = ("ordered", "joined", "leaving")
RECOVERY_CAUSES = ("infrastructure", "job")
"""As the workers' side names them in `ResizeRecord` and `FailureRecord`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticityStats:
    """Changes of worker group, of one attempt or of a job."""

    resizes: dict[str, int] = field(default_factory=dict)
    """By cause, of `RESIZE_CAUSES`."""
    recoveries: dict[str, int] = field(default_factory=dict)
    """Likewise, of `RECOVERY_CAUSES`."""
    seconds_lost: float = 0.0
    """Without a step, from a group's last one to its successor's start."""
    steps_rolled_back: int = 0
    """Trained again because they came after the checkpoint."""


def resized(tally: ElasticityStats, cause: str) -> ElasticityStats:
    """After a group took over from one of another size."""
    return replace(tally, resizes=_one_more(tally.resizes, cause))


def recovered(tally: ElasticityStats, cause: str) -> ElasticityStats:
    """After a group took over from one that broke."""
    return replace(tally, recoveries=_one_more(tally.recoveries, cause))


def cost(tally: ElasticityStats, seconds_lost: float, steps_rolled_back: int) -> ElasticityStats:
    """After a group said what its taking over cost."""
    return replace(
        tally,
        seconds_lost=tally.seconds_lost + seconds_lost,
        steps_rolled_back=tally.steps_rolled_back + steps_rolled_back,
    )


def _one_more(counts: dict[str, int], cause: str) -> dict[str, int]:
    return {**counts, cause: counts.get(cause, 0) + 1}
