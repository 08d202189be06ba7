"""What becomes of the jobs that run when the service of one machine stops."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy.exc import SQLAlchemyError

from accordion_service.domain.jobs.status_table import ENDED, STATUS_TABLE
from accordion_service.domain.jobs.statuses import Kind, Status
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.history import HistoryReads
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.tables.models import JobRow


def list_running(settings: Settings) -> list[str]:
    """Ids of the jobs that hold workers; none if the database cannot be read."""
    database = Database(settings.database)
    try:
        return [job.id for job in JobReads(database).unfinished() if _is_running(job)]
    except SQLAlchemyError:
        return []
    finally:
        database.close()


def report_ends(settings: Settings, job_ids: Collection[str]) -> list[str]:
    """Describe how the attempts of these jobs ended, one a line; nothing if the database cannot be
    read.
    """
    database = Database(settings.database)
    try:
        return [_describe(database, job_id) for job_id in job_ids]
    except SQLAlchemyError:
        return []
    finally:
        database.close()


def _is_running(job: JobRow) -> bool:
    return job.kind == Kind.JOB and STATUS_TABLE[Status(job.status)].is_active


def _describe(database: Database, job_id: str) -> str:
    history = HistoryReads(database)
    job, step = JobReads(database).get(job_id), history.saved_step(job_id)
    if job is None:
        return f"{job_id}: deleted"
    attempts = history.newest_attempts([job_id])
    how = attempts[job_id].message if job_id in attempts and not _is_running(job) else ""
    after = f"; its newest checkpoint has {step} steps" if step else "; it has no checkpoint"
    is_left = Status(job.status) not in ENDED
    return f"{job.name or job.id}: {how or 'its workers had not saved'}{after if is_left else ''}"
