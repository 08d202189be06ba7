"""Where a job's checkpoints are kept, as a sentence; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.api.schemas import StorageView


def storage_text(used: StorageView) -> str:
    """Where a job's checkpoints are kept, and who was shown to see that place, and when."""
    when = f"{used.seen_at.astimezone():%Y-%m-%d %H:%M}"
    if used.workers == 1:
        return f"{used.place}, used by one worker since {when}"
    hosts = f"{used.hosts} host{'' if used.hosts == 1 else 's'}"
    return f"{used.place}, shared: verified by {used.workers} workers on {hosts} at {when}"
