"""The table of the audit log."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Index, Integer
from sqlalchemy.orm import Mapped, mapped_column

from accordion_service.store.tables.columns import LongPlainText, PlainText
from accordion_service.store.tables.table_base import Base


class AuditRow(Base):
    """One change that a user made; written in the transaction of the change."""

    __tablename__ = "audit"
    __table_args__ = (
        Index(None, "subject", "time", "id"),
        Index(None, "user_name", "time", "id"),
        Index(None, "action", "time", "id"),
        Index(None, "token_id", "time", "id"),
        Index(None, "request_id", "time", "id"),
        Index(None, "time", "id"),
    )

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    time: Mapped[float]
    user: Mapped[str] = mapped_column("user_name", PlainText(63))
    token_id: Mapped[str] = mapped_column(PlainText(16))
    request_id: Mapped[str] = mapped_column(PlainText(64))
    action: Mapped[str] = mapped_column(PlainText(32))
    """What was done: an `AuditAction`, or one that only an earlier or later version has."""
    subject: Mapped[str] = mapped_column(PlainText(128).with_variant(LongPlainText(), "postgresql"))
    """ID of the job, plan or token, name of the user, secret, webhook or node, SHA-256 of the
    upload, or account of the quota.
    """
    before: Mapped[dict[str, Any] | None]
    after: Mapped[dict[str, Any] | None]
