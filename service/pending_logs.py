"""Output that was drained from the cluster and is not stored yet: it is delivered only once."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import accumulate

from workers.contract import Drained, LogLine

MAX_PENDING_BYTES = 1 << 20
"""Bytes of a job's output kept while the database cannot be written; the cluster's own limit per
job.
"""


class PendingLogs:
    """Keeps the newest output of each job up to the limit; older output is counted."""

    def __init__(self) -> None:
        self._by_job: dict[str, Drained] = {}

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

    def forget(self, job_id: str) -> None:
        """Forget output that is now in the database."""
        self._by_job.pop(job_id, None)

    def keep_only(self, job_ids: Container[str]) -> None:
        """Forget all other jobs."""
        self._by_job = {job_id: kept for job_id, kept in self._by_job.items() if job_id in job_ids}


def _keep_newest(lines: Sequence[LogLine]) -> tuple[LogLine, ...]:
    """Return as many of the last lines as fit into `MAX_PENDING_BYTES` of JSON."""
    sizes = accumulate(len(line.model_dump_json()) for line in reversed(lines))
    count = sum(size <= MAX_PENDING_BYTES for size in sizes)
    return tuple(lines[len(lines) - count :])
