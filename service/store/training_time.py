"""How long jobs have trained, for their time limit."""

from __future__ import annotations

from service.store.models import AttemptRow, JobRow
from service.store.stored_documents import stored_progress
from service.store.stored_spec import spec_value


def trained_seconds(job: JobRow, attempt: AttemptRow) -> float:
    """Return how long the newest attempt of a job has trained, in seconds: until its newest report,
    since nobody knows what it did while the cluster was unreachable.
    """
    progress = stored_progress(job)
    if attempt.started_at is None or progress is None:
        return 0.0
    is_of_attempt = progress.get("attempt") == attempt.number
    return max(0.0, float(progress["time"]) - attempt.started_at) if is_of_attempt else 0.0


def time_limit(job: JobRow) -> float:
    """Return for how many seconds a job may train; 0 without a limit."""
    limit_s: float = spec_value(job, "limits.training_seconds", 0.0)
    return limit_s


def describe_time_limit(job: JobRow) -> str:
    """Explain why a job is stopped that has trained for as long as it may."""
    return f"it trained for {time_limit(job):g} s, the limit of its spec (limits.training_seconds)"
