"""What the scheduler requested from Ray's autoscaler, as it is stored for the api and for the next
scheduler; pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from accordion_service.domain.capacity.misfits import describe_group
from accordion_service.domain.capacity.resources import ResourceRequest
from accordion_service.domain.documents import entries_at, value_at

AWAIT_NODES_S = 900.0
"""Maximum time for which capacity is reserved for a job whose nodes the autoscaler is adding. A new
node takes minutes, and a cloud may have none.
"""
_MINUTE_S, _HOUR_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerRecord:
    """The standing request, by the jobs that wait. Times are seconds since 1970."""

    requested_at: Mapping[str, float] = field(default_factory=dict)
    """When nodes were first requested for a waiting job, by job id."""
    awaited_since: Mapping[str, float] = field(default_factory=dict)
    """Since when capacity is reserved for a waiting job whose nodes the autoscaler is adding, by
    job id. Kept until the job leaves the queue, so that the time is not granted twice.
    """
    obstacles: Mapping[str, str] = field(default_factory=dict)
    """Why no node is requested for a waiting job that would start if there were room, by job id."""
    num_waiting: int = 0
    """Workers of waiting jobs in the request."""
    num_held: int = 0
    """Other parts of the request: capacity in use, and workers that are about to start."""

    @property
    def is_standing(self) -> bool:
        """Whether the cluster holds a request of ours."""
        return self.num_waiting + self.num_held > 0

    def dump(self) -> dict[str, Any]:
        """Return the document to store."""
        return asdict(self)

    def list_awaiting(self, now: float) -> frozenset[str]:
        """List the jobs for which capacity is reserved; never for longer than the maximum, also if
        the clock was set.
        """
        return frozenset(
            job_id
            for job_id, since in self.awaited_since.items()
            if 0.0 <= now - since < AWAIT_NODES_S and job_id not in self.obstacles
        )

    def describe(self, job_id: str, request: ResourceRequest, now: float) -> str:
        """Say what was requested for a job, or why nothing was; empty if neither."""
        if job_id in self.obstacles:
            return self.obstacles[job_id]
        if job_id not in self.requested_at:
            return ""
        age = _format_age(now - self.requested_at[job_id])
        return f"nodes for {describe_group(request)} were requested {age} ago"


NO_RECORD = AutoscalerRecord()


def read_autoscaler_record(document: Any) -> AutoscalerRecord:
    """Read a stored document, of which what is unreadable is left out."""
    return AutoscalerRecord(
        requested_at=entries_at(document, "requested_at", 0.0),
        awaited_since=entries_at(document, "awaited_since", 0.0),
        obstacles=entries_at(document, "obstacles", ""),
        num_waiting=int(value_at(document, "num_waiting", 0.0)),
        num_held=int(value_at(document, "num_held", 0.0)),
    )


def _format_age(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 2 * _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.0f} h"
