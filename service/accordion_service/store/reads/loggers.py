"""Loggers: services that get the metrics of jobs."""

from __future__ import annotations

from sqlalchemy import select

from accordion_service.store.engine.database import Database
from accordion_service.store.reads.rows import read_rows
from accordion_service.store.tables.models import LoggerRow


def read_loggers(database: Database, job_id: str) -> list[LoggerRow]:
    """Return the loggers of a job, in the order of its spec."""
    query = select(LoggerRow).where(LoggerRow.job_id == job_id).order_by(LoggerRow.number)
    return read_rows(database, query)
