"""Record of what runs a job in Ray, stored as JSON in its row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRun:
    """What runs the newest worker group of a job in Ray."""

    engine: str | None = None
    """`ray-train` or `actors`; None if the workers did not report it."""
    train_run: str | None = None
    """Name of the run in Ray Train; None if no Ray Train run is known."""
    ray_job_id: str | None = None
    """Id of the Ray job that started a guest run; None for jobs of the service."""
