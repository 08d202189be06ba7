"""The model of another job that a job starts with."""

from __future__ import annotations

from accordion_service.domain.jobs.statuses import Kind
from accordion_service.errors import Conflict, NotFound
from accordion_service.job_inputs.checkpoints import choose_checkpoints, choose_order
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.history import HistoryReads
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_spec import spec_of
from accordion_workers.records.contract import JobSpec, ModelSource, WarmStartSpec


def find_initial_model(
    job: JobRow, spec: JobSpec, *, database: Database, settings: Settings
) -> ModelSource | None:
    """Return where an attempt of the job finds the model to start with; None if the spec names
    none.

    Raises:
        NotFound: the other job, or its checkpoint, does not exist any more, and this job has no
            checkpoint of its own to continue from.
    """
    if spec.warm_start is None:
        return None
    try:
        return _find_model(database, settings, spec.warm_start)
    except NotFound:
        if HistoryReads(database).checkpoints(job.id):
            return None
        raise


def _find_model(database: Database, settings: Settings, warm_start: WarmStartSpec) -> ModelSource:
    source = JobReads(database).get(warm_start.job)
    if source is None:
        raise NotFound(
            f"job {warm_start.job}, with whose model this one starts, was deleted; clone this job"
            " with another warm_start"
        )
    try:
        names = list_source_checkpoints(database, source, warm_start.checkpoint)
    except Conflict as error:
        raise NotFound(f"the model of job {source.id} cannot be read: {error}") from error
    return ModelSource(
        job_id=source.id,
        url=spec_of(source).checkpoint.storage,
        directory=f"{settings.storage_of(source.id)}/checkpoints",
        names=tuple(names),
        order=choose_order(warm_start.checkpoint, spec_of(source).objective),
    )


def list_source_checkpoints(
    database: Database, source: JobRow, checkpoint: str | None
) -> list[str]:
    """Return the names of the checkpoints to start with, the preferred one first.

    Raises:
        Conflict: the job has none that fits.
        NotFound: it has none of this name.
    """
    if source.kind == Kind.GUEST:
        raise Conflict(
            f"job {source.id} is a guest run, whose checkpoints its own script keeps; name another"
            " job"
        )
    rows = HistoryReads(database).checkpoints(source.id)
    objective = spec_of(source).objective
    return choose_checkpoints(rows, checkpoint, objective, status=source.status)


__all__ = ["find_initial_model", "list_source_checkpoints"]
