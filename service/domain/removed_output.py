"""Says that the oldest output of a job is not kept any more."""

from __future__ import annotations


def describe_removed(removed_bytes: int) -> str:
    """Say how much output was removed, and what sets how much is kept, and how long."""
    return (
        f"{removed_bytes / 1e6:.1f} MB of older output were removed: ACCORDION_MAX_LOG_BYTES sets"
        " how much of each job is kept, and ACCORDION_HISTORY_RETENTION_S how long after its end"
    )


__all__ = ["describe_removed"]
