"""What was drained from the cluster and is not in the database yet: output is handed over only
once.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import accumulate

from workers.contract import Drained, LogLine

MAX_PENDING_BYTES = 1 << 20
"""Of a job's output that are kept while the database cannot be written: what the cluster itself
holds of a job.
"""


class PendingLogs:
    """By job, the newest output as far as there is room for it; what is older is counted."""

    def __init__(self) -> None:
        self._by_job: dict[str, Drained] = {}

    def add(self, job_id: str, drained: Drained) -> Drained:
        """Keep what was drained; together with the output that was kept before."""
        kept = self.of(job_id)
        lines = (*kept.logs, *drained.logs)
        newest = _newest(lines)
        dropped = kept.logs_dropped + drained.logs_dropped + len(lines) - len(newest)
        self._by_job[job_id] = drained.model_copy(update={"logs": newest, "logs_dropped": dropped})
        return self._by_job[job_id]

    def of(self, job_id: str) -> Drained:
        """What is kept of a job."""
        return self._by_job.get(job_id, Drained())

    def forget(self, job_id: str) -> None:
        """It is in the database now."""
        self._by_job.pop(job_id, None)

    def keep_only(self, job_ids: Container[str]) -> None:
        """Forget all other jobs."""
        self._by_job = {job_id: kept for job_id, kept in self._by_job.items() if job_id in job_ids}


def _newest(lines: Sequence[LogLine]) -> tuple[LogLine, ...]:
    """The last lines, as many as fit into `MAX_PENDING_BYTES` of JSON."""
    sizes = accumulate(len(line.model_dump_json()) for line in reversed(lines))
    count = sum(size <= MAX_PENDING_BYTES for size in sizes)
    return tuple(lines[len(lines) - count :])
