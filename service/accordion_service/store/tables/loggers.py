"""The table of loggers: how far each logger of a job is."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from accordion_service.domain.jobs.loggers import LoggerState
from accordion_service.store.tables.columns import LongPlainText, PlainText
from accordion_service.store.tables.table_base import Base


class LoggerRow(Base):
    """One logger of a job's spec."""

    __tablename__ = "loggers"
    __table_args__ = (Index(None, "next_turn_at"),)

    job_id: Mapped[str] = mapped_column(
        PlainText(36), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Position in `loggers` of the spec, counted from 0."""
    kind: Mapped[str] = mapped_column(PlainText(16))
    state: Mapped[str] = mapped_column(PlainText(16), default=LoggerState.WAITING.value)
    version: Mapped[int] = mapped_column(default=0)
    """Raised by every claim; an outcome that belongs to an older one changes nothing."""
    failures: Mapped[int] = mapped_column(default=0)
    """Attempts that failed since the last one that succeeded."""
    next_turn_at: Mapped[float | None]
    """When it may be served again; None if nothing follows."""
    seen_generation: Mapped[int] = mapped_column(BigInteger, default=0)
    seen_seq: Mapped[int] = mapped_column(default=-1)
    """Newest record of the job (`cursor_seq`, and `cursor_generation`) when epochs were last looked
    for: without a newer one, there is nothing to send.
    """
    attempt: Mapped[int] = mapped_column(default=0)
    generation: Mapped[int] = mapped_column(BigInteger, default=0)
    epoch: Mapped[int] = mapped_column(default=-1)
    """Newest epoch that is sent, and the attempt and worker group that trained it; -1 before the
    first.
    """
    run_id: Mapped[str] = mapped_column(LongPlainText(), default="")
    """ID of the run in the logger; empty before it is known, or if runs have none."""
    location: Mapped[str] = mapped_column(LongPlainText(), default="")
    """URL or path of the run; empty before it is known."""
    message: Mapped[str] = mapped_column(LongPlainText(), default="")
    """Why the last attempt failed; empty if it did not."""
    sent_at: Mapped[float | None]
    """When something was last sent."""

    @property
    def next_epoch(self) -> int:
        """Epoch after the newest one that is sent."""
        return self.epoch + 1
