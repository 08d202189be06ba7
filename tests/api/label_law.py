"""The law of labels: the table of labels says what the documents of the jobs say."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from accordion_service.store.engine.database import Database
from accordion_service.store.engine.job_labels import COPIED_COLUMNS
from accordion_service.store.tables.models import JobLabelRow, JobRow
from accordion_service.store.tables.stored_documents import stored_labels

Rows = set[tuple[Any, ...]]


def described_labels(database: Database) -> Rows:
    """Return job, key, value and copied columns of each label in the documents of the jobs."""
    with database.read() as session:
        return {
            (job.id, key, value, *(getattr(job, name) for name in COPIED_COLUMNS))
            for job in session.scalars(select(JobRow))
            for key, value in stored_labels(job).items()
        }


def listed_labels(database: Database) -> Rows:
    """Return job, key, value and copied columns of each row in the table of labels."""
    copied = (getattr(JobLabelRow, name) for name in COPIED_COLUMNS)
    query = select(JobLabelRow.job_id, JobLabelRow.key, JobLabelRow.value, *copied)
    with database.read() as session:
        rows = [tuple(row) for row in session.execute(query)]
    assert len(rows) == len(set(rows))
    return set(rows)


def check_labels(database: Database) -> Rows:
    """Check the law, and return the rows."""
    rows = listed_labels(database)
    assert rows == described_labels(database)
    return rows


def labels_of(database: Database, job_id: str) -> dict[str, str]:
    """Check the law, and return the labels of one job in the table."""
    return {key: value for owner, key, value, *_ in check_labels(database) if owner == job_id}
