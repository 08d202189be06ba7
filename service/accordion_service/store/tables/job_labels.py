"""The table of labels, from which lists of the jobs with a label are read."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from accordion_service.store.tables.columns import LongPlainText, PlainText
from accordion_service.store.tables.table_base import Base


class JobLabelRow(Base):
    """One label of a job; `job_labels.py` writes it when the job's row is written.

    The index has the columns by which lists are ordered and most often filtered. SQLite keeps the
    rows themselves in the order of the primary key.
    """

    __tablename__ = "job_labels"
    __table_args__ = (
        Index(
            "ix_job_labels_list",
            "key",
            "value",
            "archived",
            "created_at",
            "job_id",
            "kind",
            "owner",
            "name",
        ),
        {"sqlite_with_rowid": False},
    )

    job_id: Mapped[str] = mapped_column(
        PlainText(36), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    key: Mapped[str] = mapped_column(LongPlainText(), primary_key=True)
    value: Mapped[str] = mapped_column(LongPlainText())
    archived: Mapped[bool]
    """Copy of the job's column, as are those below."""
    created_at: Mapped[float]
    kind: Mapped[str] = mapped_column(PlainText(8))
    owner: Mapped[str | None] = mapped_column(PlainText(63))
    name: Mapped[str] = mapped_column(LongPlainText())
