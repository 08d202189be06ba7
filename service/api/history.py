"""What happened to a job: attempts, epochs, decisions, checkpoints, and what is in force now."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.api.conditions import etag
from service.api.deps import NO_QUERY, JobDep, RepositoryDep
from service.api.problems import problems
from service.api.schemas import AttemptList, CheckpointList, DecisionList, EpochList, ScheduleView
from service.api.views import attempt_view, checkpoint_view, decision_view, epoch_view, schedule_view

router = APIRouter(prefix="/jobs/{job_id}", tags=["history"], dependencies=[NO_QUERY])


@router.get("/attempts", responses=problems(404))
def get_attempts(job: JobDep, repository: RepositoryDep) -> AttemptList:
    """All runs of the job, oldest first; a run that lost its machines is followed by another."""
    return AttemptList(items=[attempt_view(row) for row in repository.attempts(job.id)])


@router.get("/epochs", responses=problems(404))
def get_epochs(job: JobDep, repository: RepositoryDep) -> EpochList:
    """All finished epochs, oldest first, each exactly once."""
    return EpochList(items=[epoch_view(row) for row in repository.epochs(job.id)])


@router.get("/decisions", responses=problems(404))
def get_decisions(job: JobDep, repository: RepositoryDep) -> DecisionList:
    """All decisions that every worker switched to, oldest first, with their reasons."""
    return DecisionList(items=[decision_view(row) for row in repository.decisions(job.id)])


@router.get("/checkpoints", responses=problems(404))
def get_checkpoints(job: JobDep, repository: RepositoryDep) -> CheckpointList:
    """All states that were saved, oldest first."""
    return CheckpointList(items=[checkpoint_view(row) for row in repository.checkpoints(job.id)])


@router.get("/schedule", responses=problems(404))
def get_schedule(job: JobDep, repository: RepositoryDep, response: Response) -> ScheduleView:
    """What is in force for each layer, who said so, and what the policy would pick."""
    response.headers["ETag"] = etag(job)
    return schedule_view(job, repository.newest_decision(job.id))
