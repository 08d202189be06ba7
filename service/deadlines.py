"""Deadlines of jobs on the monotonic clock, unaffected by changes of the wall clock."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from service.store.models import JobRow


@dataclass(frozen=True, slots=True, kw_only=True)
class _Anchor:
    """A stored deadline and its time on the monotonic clock."""

    stored: float
    """Deadline in the row, on the wall clock."""
    ends_at: float
    """Deadline on the monotonic clock."""


class Deadlines:
    """Converts deadlines of rows from the wall clock to the monotonic clock.

    Each deadline is converted once, when this process first reads it. One that is further away than
    `longest_s` was written before the clock was set back, and is limited to that.
    """

    def __init__(
        self, *, clock: Callable[[], float], monotonic: Callable[[], float], longest_s: float
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._longest_s = longest_s
        self._anchors: dict[str, _Anchor] = {}

    def get(self, job: JobRow) -> float | None:
        """When the job's start counts as failed, or its stop is forced; monotonic clock."""
        if job.deadline is None:
            return None
        anchor = self._anchors.get(job.id)
        if anchor is None or anchor.stored != job.deadline:
            left_s = min(job.deadline - self._clock(), self._longest_s)
            anchor = _Anchor(stored=job.deadline, ends_at=self._monotonic() + left_s)
            self._anchors[job.id] = anchor
        return anchor.ends_at

    def keep_only(self, job_ids: Container[str]) -> None:
        """Drop the deadlines of all other jobs."""
        self._anchors = {
            job_id: anchor for job_id, anchor in self._anchors.items() if job_id in job_ids
        }
