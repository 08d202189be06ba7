"""Drains many jobs into one answer of bounded size; the Accordion actor's part without Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from accordion_workers.hub.actor_messages import estimate_line_bytes
from accordion_workers.records.contract import Cursor, Drained


class BoundedDrain:
    """Drains jobs one after the other until an answer is full; those that it leaves out come first
    the next time.
    """

    def __init__(self, drain: Callable[[str, Cursor], Drained]) -> None:
        self._drain = drain
        self._left_out: list[str] = []

    def drain_many(
        self, cursors: Mapping[str, Cursor], *, max_records: int, max_log_bytes: int
    ) -> dict[str, Drained]:
        """Drain jobs by id until the answer has so many records or so much output."""
        waiting = dict.fromkeys(
            [*(job_id for job_id in self._left_out if job_id in cursors), *cursors]
        )
        answer: dict[str, Drained] = {}
        records = log_bytes = 0
        for job_id in waiting:
            if records >= max_records or log_bytes >= max_log_bytes:
                break
            answer[job_id] = drained = self._drain(job_id, cursors[job_id])
            records += len(drained.records)
            log_bytes += sum(map(estimate_line_bytes, drained.logs))
        self._left_out = [job_id for job_id in waiting if job_id not in answer]
        return answer
