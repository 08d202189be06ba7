"""What elasticity cost so far: a record, and how a worker group's words change it; pure."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from workers.contract import Started

RESIZE_CAUSES = ("ordered", "joined", "leaving")
RECOVERY_CAUSES = ("infrastructure", "job")
"""As the workers' side names them in `ResizeRecord` and `FailureRecord`."""


class Tally(BaseModel):
    """Changes of worker group, of one attempt or of a job."""

    model_config = ConfigDict(frozen=True)

    resizes: dict[str, int] = {}
    """By cause, of `RESIZE_CAUSES`."""
    recoveries: dict[str, int] = {}
    """Likewise, of `RECOVERY_CAUSES`."""
    seconds_lost: float = 0.0
    """Without a step, from a group's last one to its successor's start."""
    steps_rolled_back: int = 0
    """Trained again because they came after the checkpoint."""


def count(tally: Tally, started: Started, cause: str) -> Tally:
    """After another group took over; `cause` is what was announced before."""
    took_over = {"resize": "resizes", "recovery": "recoveries"}.get(started.cause)
    more = {took_over: _one_more(getattr(tally, took_over), cause)} if took_over else {}
    lost = {
        "seconds_lost": tally.seconds_lost + started.seconds_lost,
        "steps_rolled_back": tally.steps_rolled_back + started.steps_rolled_back,
    }
    return tally.model_copy(update={**more, **lost})


def _one_more(counts: dict[str, int], cause: str) -> dict[str, int]:
    return {**counts, cause: counts.get(cause, 0) + 1}
