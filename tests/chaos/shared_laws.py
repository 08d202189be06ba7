"""Laws of what all jobs share: the quotas of their owners, and the queue.

Both follow from the events of the jobs, whose times come from one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tests.chaos.history import History
from tests.chaos.owners import OWNERS, WORKERS_PER_OWNER, OwnedJob

_WAITED_S = 10.0
"""Seconds that a job must have waited before another one may not pass it. A job that has just
returned to the queue cannot start before its old processes are gone.
"""


def check_quotas(jobs: Sequence[OwnedJob], histories: Mapping[str, History]) -> Iterable[str]:
    """Check that the jobs of no owner ever held more workers than the quota allows."""
    for owner in OWNERS:
        most = max((held for _, held in _list_held(owner, jobs, histories)), default=0)
        if most > WORKERS_PER_OWNER:
            yield f"the jobs of {owner} held {most} workers of {WORKERS_PER_OWNER}"


def check_queue(jobs: Sequence[OwnedJob], histories: Mapping[str, History]) -> Iterable[str]:
    """Check that no job started with workers that a more important one waited for.

    All workers are alike, so a job could have had those with which another one started, if that
    has as many as its minimum and its owner's quota allowed them. Only the first waiting job of
    each owner counts: the others wait for it if they wait for the quota.
    """
    for job in jobs:
        for at, workers in histories[job.id].list_starts():
            for owner in OWNERS:
                first = _find_waiting(owner, jobs, histories, at=at)
                if first is None or first.priority <= job.priority or first.min_workers > workers:
                    continue
                held = _count_held(owner, jobs, histories, at=at)
                if held + first.min_workers <= WORKERS_PER_OWNER:
                    yield (
                        f"{job.owner}-{job.number} of priority {job.priority} started with"
                        f" {workers} workers, while {first.owner}-{first.number} of priority"
                        f" {first.priority} waited for {first.min_workers}"
                    )


def _find_waiting(
    owner: str, jobs: Sequence[OwnedJob], histories: Mapping[str, History], *, at: float
) -> OwnedJob | None:
    """Find the first job in an owner's part of the queue; None if that changed lately."""
    since = at - _WAITED_S
    stays = {job.id: histories[job.id].list_stays() for job in jobs if job.owner == owner}
    queued = [
        job
        for job in jobs
        if job.id in stays and any(stay.overlaps(since, at) for stay in stays[job.id])
    ]
    first = min(
        queued, key=lambda job: (-job.priority, histories[job.id].row.created_at), default=None
    )
    if first is None or not any(stay.covers(since, at) for stay in stays[first.id]):
        return None
    return first


def _count_held(
    owner: str, jobs: Sequence[OwnedJob], histories: Mapping[str, History], *, at: float
) -> int:
    """Return the most workers that an owner's jobs lately held together."""
    since, held = at - _WAITED_S, _list_held(owner, jobs, histories)
    before = [workers for time, workers in held if time <= since]
    return max([*before[-1:], *(workers for time, workers in held if since < time < at)], default=0)


def _list_held(
    owner: str, jobs: Sequence[OwnedJob], histories: Mapping[str, History]
) -> list[tuple[float, int]]:
    """List how many workers the jobs of an owner held together, with the time of each change."""
    changes = sorted(
        (time, workers, job.id)
        for job in jobs
        if job.owner == owner
        for time, workers in histories[job.id].list_allocations()
    )
    workers_by_job: dict[str, int] = {}
    held = []
    for time, workers, job_id in changes:
        workers_by_job[job_id] = workers
        held.append((time, sum(workers_by_job.values())))
    return held
