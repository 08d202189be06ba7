"""Response models for what holds a job up."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from accordion_service.domain.performance.step_profile import Cause
from accordion_service.schemas.jobs import Answer


class ChangeView(Answer):
    """The change that should speed a job up most."""

    text: str
    """What to change, in one sentence without a full stop."""
    speedup: float
    """Predicted factor of the samples per second, such as 1.5."""
    is_upper_bound: bool
    """Whether `speedup` assumes that the whole cause goes away, so that the real factor is smaller.
    """


class WhyView(Answer):
    """What holds a job up: the largest part of its steps besides computing."""

    sentence: str
    """The answer in one sentence."""
    cause: Cause | None = None
    """Largest part of a step besides computing; `compute` if no other part takes 10 % of a step,
    and null if it is unknown, because the job does not train or has trained too few steps.
    """
    share: float | None = None
    """Share of `cause` in a step, from 0 to 1; null if the cause is null."""
    step_s: float | None = None
    """Mean seconds of a step over the last 10 s; evaluation, checkpoints and decisions are spread
    over the steps of the last epoch. Null if the cause is null.
    """
    seconds_by_cause: dict[Cause, float] = Field(default_factory=dict)
    """Mean seconds of a step by part, of rank 0; empty if the cause is null."""
    rank: int | None = None
    """The slow worker, or the one whose links to both neighbors are slow, if that is the cause;
    otherwise null.
    """
    change: ChangeView | None = None
    """The best change; null if there is nothing to change."""
    wait_s_by_level: dict[str, float] = Field(default_factory=dict)
    """Seconds for which a step would wait for exchanges at each level, as predicted at the last
    decision; empty unless the policy is `cost_aware`.
    """
    exchange_wait_s: float | None = None
    """Seconds for which a step waited for exchanges before the last decision, to compare with the
    prediction before it; null if it was not measured.
    """
    updated_at: datetime | None = None
    """Time of the report that this is computed from; null before the first report."""
