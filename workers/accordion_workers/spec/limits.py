"""The part of a job's specification with its time limits.

Loads pydantic, but neither ray nor torch.
"""

from __future__ import annotations

from pydantic import Field

from accordion_workers.spec.types import Number, Strict


class LimitsSpec(Strict):
    """Time limits of the job, and limits after which a worker process counts as hung."""

    training_seconds: Number | None = Field(default=None, gt=0, le=1_000_000_000)
    """Seconds of training, over all attempts, after which the job saves a checkpoint, stops and
    fails as `TIMED_OUT`; time in the queue, paused or starting does not count. Null: no limit.
    """
    total_seconds: Number | None = Field(default=None, gt=0, le=1_000_000_000)
    """Seconds from the submission, or from `start_at` if that is later, or from the newest retry,
    after which a job that has not ended saves a checkpoint if it trains, stops and fails as
    `TIMED_OUT`; all time counts, also in the queue and paused. Null: no limit.
    """
    start_seconds: Number = Field(default=3600, ge=1, le=10_000_000)
    """Seconds to load the task and its data, then a checkpoint, while the process responds."""
    step_seconds: Number = Field(default=1800, ge=1, le=10_000_000)
    """Seconds during which no worker makes progress: a step, micro-batch, piece of the evaluation
    or session call.
    """
    answer_seconds: Number = Field(default=15, ge=1, le=100_000)
    """Seconds that a process may be unresponsive, at least 120 while it starts; doubles whenever a
    process is killed for it, up to 960.
    """


__all__ = ["LimitsSpec"]
