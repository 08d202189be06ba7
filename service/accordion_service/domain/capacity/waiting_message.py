"""Messages of queued jobs: behind another one, as stored and as shown, and until a time."""

from __future__ import annotations

from datetime import UTC, datetime

WAITS_FOR_SCHEDULER = "waits for the scheduler"
WAITS_ITS_TURN = "waits its turn behind a job that has no room yet"
"""Stored for each job behind the first one without capacity. The id of that job is inserted when
the message is shown, so that a change at the head of the queue rewrites no row behind it.
"""


def format_waiting_message(message: str, first_without_capacity: str | None) -> str:
    """Insert the id of the blocking job into the stored message."""
    if message != WAITS_ITS_TURN or first_without_capacity is None:
        return message
    return f"waits behind job {first_without_capacity}, which is ahead of it in the queue"


def format_start(start_at: float) -> str:
    """Return the message of a job that waits for a time, in seconds since 1970."""
    time = datetime.fromtimestamp(start_at, UTC)
    return f"starts no earlier than {time:%Y-%m-%d %H:%M:%S} UTC (start_at)"
