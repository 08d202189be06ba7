"""Whether a job trains at the moment; pure."""

from __future__ import annotations

from accordion_service.domain.jobs.statuses import Reason, Status


def is_training(status: str, reason: str) -> bool:
    """Return whether a job makes steps, so that its newest speed is its present one."""
    return status == Status.RUNNING and reason != Reason.WAITING_FOR_STORAGE
