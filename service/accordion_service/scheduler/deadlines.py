"""Times of jobs on the monotonic clock, unaffected by changes of the wall clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass

from accordion_service.process.trusted_clock import TrustedClock
from accordion_service.store.tables.models import JobRow


@dataclass(frozen=True, slots=True, kw_only=True)
class _Anchor:
    """A stored time and the same one on the monotonic clock."""

    stored: float
    """Time in the row, on the wall clock."""
    comes_at: float
    """Time on the monotonic clock."""


class StoredTimes:
    """Converts times of rows from the wall clock to the monotonic clock.

    Each time is converted once, when this process first reads it. One that is further away than it
    can be was written before the clock was set back, and is limited to that. One that has passed by
    then may only seem so, to a clock that is ahead: it is converted once the clocks have agreed for
    `agreed_s` seconds.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        agreed_s: float = 0.0,
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._trusted = TrustedClock(clock=clock, monotonic=monotonic)
        self._agreed_s = agreed_s
        self._anchors: dict[str, _Anchor] = {}

    def convert(self, job_id: str, stored: float, longest_s: float) -> float:
        """Return the stored time of a job on the monotonic clock; it comes in at most `longest_s`
        seconds. Infinite while it is not converted.
        """
        anchor = self._anchors.get(job_id)
        if anchor is None or anchor.stored != stored:
            left_s = min(stored - self._clock(), longest_s)
            if left_s <= 0.0 and self._trusted.read(min(longest_s, self._agreed_s)) is None:
                return math.inf
            anchor = _Anchor(stored=stored, comes_at=self._monotonic() + left_s)
            self._anchors[job_id] = anchor
        return anchor.comes_at

    def keep_only(self, job_ids: Container[str]) -> None:
        """Drop the times of all other jobs."""
        self._anchors = {
            job_id: anchor for job_id, anchor in self._anchors.items() if job_id in job_ids
        }


class Deadlines(StoredTimes):
    """Deadlines of rows, which come in at most `longest_s` seconds."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        longest_s: float,
        agreed_s: float = 0.0,
    ) -> None:
        super().__init__(clock=clock, monotonic=monotonic, agreed_s=agreed_s)
        self._longest_s = longest_s

    def get(self, job: JobRow) -> float | None:
        """When the job's start counts as failed, or its stop is forced; monotonic clock."""
        if job.deadline is None:
            return None
        return self.convert(job.id, job.deadline, self._longest_s)
