"""Table of the checkpoints of jobs."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from accordion_service.store.tables.columns import LongPlainText, PlainText
from accordion_service.store.tables.table_base import Base


class CheckpointRow(Base):
    """A saved state that can be resumed from."""

    __tablename__ = "checkpoints"

    job_id: Mapped[str] = mapped_column(
        PlainText(36), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    name: Mapped[str] = mapped_column(
        PlainText(128).with_variant(LongPlainText(), "postgresql"), primary_key=True
    )
    attempt: Mapped[int]
    generation: Mapped[int] = mapped_column(BigInteger)
    epoch: Mapped[int]
    step: Mapped[int]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    seconds: Mapped[float]
    blocked_s: Mapped[float] = mapped_column(default=0.0)
    objective: Mapped[float | None]
    time: Mapped[float]
    removed_at: Mapped[float | None]
    """When retention removed it after the end of the job."""
