"""Route that counts jobs by status."""

from __future__ import annotations

from fastapi import APIRouter

from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.deps import NO_QUERY, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import Scope
from accordion_service.domain.jobs.statuses import Kind, Status
from accordion_service.schemas.jobs import Answer

router = APIRouter(tags=["jobs"])


class JobCounts(Answer):
    """Numbers of jobs and guest runs by status, without archived ones."""

    jobs: dict[Status, int]
    """Number of jobs by status; a status without any is 0."""
    guests: dict[Status, int]
    """Number of guest runs by status; a status without any is 0."""


@router.get(
    "/job-counts",
    dependencies=[require_scope(Scope.READ), NO_QUERY],
    responses=describe_problems(),
)
def count_jobs(state: StateDep, caller: CallerDep) -> JobCounts:
    """Count jobs by status, without archived ones. Without the scope `read:all`, only your own jobs
    and guest runs are counted.
    """
    visible_to = None if Scope.READ_ALL in caller.scopes else caller.user
    counts = state.jobs.count_listed(visible_to)
    return JobCounts.model_validate({"jobs": counts[Kind.JOB], "guests": counts[Kind.GUEST]})
