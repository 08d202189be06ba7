"""Says that the oldest output, or the oldest events, of a job are not kept any more."""

from __future__ import annotations

from accordion_service.domain.byte_sizes import format_bytes


def describe_removed(removed_bytes: int) -> str:
    """Say how much output was removed, and what sets how much is kept, and how long."""
    return (
        f"{format_bytes(removed_bytes)} of older output were removed: ACCORDION_MAX_LOG_BYTES sets"
        " how much of each job is kept, and ACCORDION_HISTORY_RETENTION_S how long after its end"
    )


def describe_removed_history(num_events: int, output_bytes: int) -> str:
    """Say how many events and how much output of a job were removed, and why; empty if none."""
    events = f"{num_events} older event{'' if num_events == 1 else 's'}" if num_events else ""
    output = f"{format_bytes(output_bytes)} of older output" if output_bytes else ""
    removed = " and ".join(filter(None, (events, output)))
    return removed and (
        f"No longer kept: {removed}. ACCORDION_MAX_EVENTS and ACCORDION_MAX_LOG_BYTES set how much"
        " of each job is kept, and ACCORDION_HISTORY_RETENTION_S how long after its end."
    )


__all__ = ["describe_removed", "describe_removed_history"]
