"""What a job that waits behind others says of itself, as it is stored and as it is shown."""

from __future__ import annotations

WAITS_ITS_TURN = "waits its turn behind a job that has no room yet"
"""Stored for each job behind the first one without room. Which one that is follows when it is shown,
so that a change at the head of the queue rewrites no row behind it."""


def shown_message(message: str, first_without_room: str | None) -> str:
    """The stored message of a waiting job, with the job that it waits behind."""
    if message != WAITS_ITS_TURN or first_without_room is None:
        return message
    return f"waits behind job {first_without_room}, which is before it"
