"""How long jobs have trained and how long they may take: the values behind their time limits."""

from __future__ import annotations

from accordion_service.store.tables.models import AttemptRow, JobRow
from accordion_service.store.tables.stored_documents import stored_progress
from accordion_service.store.tables.stored_spec import spec_value


def trained_seconds(job: JobRow, attempt: AttemptRow) -> float:
    """Return how long the newest attempt of a job has trained, in seconds: until its newest report,
    since nobody knows what it did while the cluster was unreachable.
    """
    progress = stored_progress(job)
    if attempt.started_at is None or progress is None:
        return 0.0
    is_of_attempt = progress.get("attempt") == attempt.number
    return max(0.0, float(progress["time"]) - attempt.started_at) if is_of_attempt else 0.0


def training_limit(job: JobRow) -> float:
    """Return for how many seconds a job may train; 0 without a limit."""
    limit_s: float = spec_value(job, "limits.training_seconds", 0.0)
    return limit_s


def total_limit(job: JobRow) -> float:
    """Return for how many seconds a job may take, from its submission; 0 without a limit."""
    limit_s: float = spec_value(job, "limits.total_seconds", 0.0)
    return limit_s


def time_out_at(job: JobRow, now: float) -> float | None:
    """Return when a job that is submitted or retried now times out; None without a total limit."""
    limit_s = total_limit(job)
    return max(now, job.start_at or 0.0) + limit_s if limit_s else None


def describe_limit(job: JobRow) -> str:
    """Explain why a job is stopped that has reached a limit: the total one, if it still counts."""
    if job.times_out_at is None:
        limit_s, what, name = training_limit(job), "trained for", "training_seconds"
    else:
        limit_s, what, name = total_limit(job), "did not end within", "total_seconds"
    return f"it {what} {limit_s:.10g} s, the limit of its spec (limits.{name})"


def describe_time_out(job: JobRow) -> str:
    """Explain why a job that has reached a limit failed, and what to do."""
    again = "train for as long again" if job.times_out_at is None else "give it as long again"
    return f"{describe_limit(job)}; retry it to {again}, or clone it with a higher limit"
