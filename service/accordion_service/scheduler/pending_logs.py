"""Output that was drained from the cluster and is not stored yet: it is delivered only once."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import accumulate

from accordion_workers.records.contract import Drained, LogLine

MAX_PENDING_BYTES = 1 << 20
"""Bytes of a job's output kept while the database cannot be written; the cluster's own limit per
job.
"""


class PendingLogs:
    """Keeps the newest output of each job up to the limit; older output is counted."""

    def __init__(self) -> None:
        self._by_job: dict[str, Drained] = {}
        self._chunks: dict[str, int] = {}
        """Number of a job's newest chunk of output before what is kept was written, by job id."""

    def add(self, job_id: str, drained: Drained) -> Drained:
        """Keep drained output, together with the output kept before."""
        kept = self.get(job_id)
        lines = (*kept.logs, *drained.logs)
        newest = _keep_newest(lines)
        dropped = kept.logs_dropped + drained.logs_dropped + len(lines) - len(newest)
        self._by_job[job_id] = drained.model_copy(update={"logs": newest, "logs_dropped": dropped})
        return self._by_job[job_id]

    def get(self, job_id: str) -> Drained:
        """Output kept of a job."""
        return self._by_job.get(job_id, Drained())

    def note_write(self, job_id: str, log_number: int) -> None:
        """Note that the kept output is about to become the chunk after this one; if the connection
        is lost, nobody learns whether it did.
        """
        self._chunks[job_id] = log_number

    def drop_notes(self, job_ids: Iterable[str]) -> None:
        """Drop the notes of a write whose outcome is known."""
        for job_id in job_ids:
            self._chunks.pop(job_id, None)

    def settle(self, job_id: str, log_number: int) -> None:
        """Forget the output of a write that seemed to fail if the database has a newer chunk."""
        if job_id in self._chunks and log_number > self._chunks.pop(job_id):
            self.forget(job_id)

    def forget(self, job_id: str) -> None:
        """Forget output that is now in the database."""
        self._by_job.pop(job_id, None)
        self._chunks.pop(job_id, None)

    def keep_only(self, job_ids: Container[str]) -> None:
        """Forget all other jobs."""
        for job_id in [*self._by_job]:
            if job_id not in job_ids:
                self.forget(job_id)


def _keep_newest(lines: Sequence[LogLine]) -> tuple[LogLine, ...]:
    """Return as many of the last lines as fit into `MAX_PENDING_BYTES` of JSON."""
    sizes = accumulate(len(line.model_dump_json()) for line in reversed(lines))
    count = sum(size <= MAX_PENDING_BYTES for size in sizes)
    return tuple(lines[len(lines) - count :])
