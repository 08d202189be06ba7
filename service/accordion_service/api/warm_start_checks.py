"""Checks, before a job is stored, that it can start with the model that it names."""

from __future__ import annotations

from accordion_service.api.app_state import AppState
from accordion_service.domain.access import Caller
from accordion_service.errors import Conflict, Invalid, NotFound
from accordion_service.job_inputs.warm_starts import list_source_checkpoints
from accordion_workers.records.contract import JobSpec


def check_warm_start(
    state: AppState, caller: Caller, spec: JobSpec, *, pointer: str = "/warm_start"
) -> None:
    """Check that the caller may see the job, and that it has such a checkpoint.

    Raises:
        Invalid: it has not, or there is no such job.
    """
    if spec.warm_start is None:
        return
    source = state.jobs.get(spec.warm_start.job)
    if source is None or not caller.may_see(source.owner):
        raise Invalid(
            f"there is no job with the ID {spec.warm_start.job}; 'accordion list'"
            " (GET /api/v1/jobs) lists all",
            f"{pointer}/job",
        )
    try:
        list_source_checkpoints(state.database, source, spec.warm_start.checkpoint)
    except NotFound as error:
        raise Invalid(str(error), f"{pointer}/checkpoint") from error
    except Conflict as error:
        raise Invalid(str(error), pointer) from error


__all__ = ["check_warm_start"]
