"""Keeps the table of labels equal to the labels of the jobs, whoever writes these.

Every session that writes calls `store_labels` after each flush (`database.py`), so the rows change
in the transaction of their job, and no caller can forget them. A statement that writes rows of jobs
without objects would not be seen; `tests/architecture/test_label_writes.py` lists those there are.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, insert, inspect
from sqlalchemy.orm import Session

from accordion_service.store.tables.job_labels import JobLabelRow
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_documents import stored_labels
from accordion_workers.common.plain_text import clean_texts

COPIED_COLUMNS = ("archived", "created_at", "kind", "owner", "name")
"""Columns of a job that the rows of its labels have, too."""
_LABEL_COLUMNS = ("labels", *COPIED_COLUMNS)


def label_rows(job: JobRow) -> list[dict[str, Any]]:
    """Return the rows of a job's labels; none if they are unreadable."""
    copied = {name: getattr(job, name) for name in COPIED_COLUMNS}
    labels = clean_texts(stored_labels(job))
    return [{"job_id": job.id, "key": key, "value": labels[key], **copied} for key in labels]


def store_labels(session: Session, _context: object) -> None:
    """Store the labels of the jobs that a flush has inserted or changed; for `after_flush`."""
    new = [job for job in session.new if isinstance(job, JobRow)]
    changed = [job for job in session.dirty if isinstance(job, JobRow) and _are_labels_stale(job)]
    if not (new or changed):
        return
    connection = session.connection()
    for job in changed:
        connection.execute(delete(JobLabelRow).where(JobLabelRow.job_id == job.id))
    rows = [row for job in (*new, *changed) for row in label_rows(job)]
    if rows:
        connection.execute(insert(JobLabelRow), rows)


def _are_labels_stale(job: JobRow) -> bool:
    return len(inspect(job).unmodified_intersection(_LABEL_COLUMNS)) < len(_LABEL_COLUMNS)


__all__ = ["COPIED_COLUMNS", "label_rows", "store_labels"]
