"""Request and response models that contain the whole spec of a job.

The client imports them where it needs them, because `JobSpec` takes long to load.
"""

from __future__ import annotations

from pydantic import Field

from accordion_service.schemas.jobs import Answer, Request
from accordion_workers.records.contract import JobSpec


class DryRun(Answer):
    """What submitting a spec would do; nothing was stored."""

    spec: JobSpec
    """The spec with all defaults filled in."""
    would_wait: bool
    """True if the job would stay in the queue; false if it would start, also if less important jobs
    have to release workers first. That it may start beside a job ahead of it is not considered.
    """
    message: str
    """Why the job would wait, or with how many workers it would start."""


class PlanLink(Request):
    """Link between every pair of workers."""

    mbit_per_s: float = Field(ge=0.001, le=1e7)
    """Bandwidth in one direction in Mbit/s, such as 100; 1000 is 1 Gbit/s."""
    latency_ms: float = Field(default=0.0, ge=0, le=60_000)
    """Time in milliseconds from one worker to another, which is half of a round trip; 0 by default.
    """


class PlanRequest(Request):
    """Request for the predicted steps of a job."""

    spec: JobSpec
    """The job, as in `POST /jobs`. The prediction is for `workers.max` workers, at least 2."""
    link: PlanLink
    """Link between the workers."""
    measure_s: float = Field(default=5.0, ge=0, le=60)
    """Seconds for which steps of one worker are measured; 5 by default."""
