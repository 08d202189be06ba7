"""States of a plan."""

from __future__ import annotations

from enum import StrEnum


class PlanStatus(StrEnum):
    """State of a plan; see `service/accordion_service/scheduler/plans.py`."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
