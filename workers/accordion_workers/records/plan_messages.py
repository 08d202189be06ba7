"""Messages of plans: a request to predict the steps of a job, and its result. Loads pydantic, but
neither ray nor torch.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from accordion_workers.spec.env import list_secret_values
from accordion_workers.spec.job import JobSpec
from accordion_workers.spec.types import Strict


class PlanTask(Strict):
    """Request to predict the steps of a job that does not run yet."""

    id: str
    """ID of the plan."""
    spec: JobSpec
    """The job; the prediction is for `workers.max` workers."""
    latency_s: float
    """Seconds from one worker to another."""
    bytes_per_s: float
    """Bandwidth between two workers in one direction."""
    measure_s: float
    """Seconds for which steps of one worker are measured."""
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    """Environment variables of the measuring process, with the values of secrets; empty once it
    has started.
    """

    def list_secret_values(self) -> list[str]:
        """Return the values of variables that refer to a secret."""
        return list_secret_values(self.spec.env, self.env)


class PlanResult(Strict):
    """Result of a plan."""

    result: dict[str, Any] = Field(default_factory=dict)
    """`compute_s`, `predictions`, `local_steps`, `shard_bytes` and `runs`, as `planning/` writes
    them; empty with an error.
    """
    error: str = ""
    """Why there are no predictions, in one sentence."""
