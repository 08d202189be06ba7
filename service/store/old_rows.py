"""Deletes rows that no job owns once they are old: audit entries and idempotency keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CursorResult, delete, func, select

from service.store.database import Database
from service.store.models import AuditRow, IdempotencyRow


def delete_audit(database: Database, *, before: float, limit: int) -> int:
    """Delete the oldest audit entries, at most `limit`, of those written before a time; return how
    many were deleted.
    """
    oldest = select(AuditRow.id, AuditRow.time).order_by(AuditRow.id).limit(limit).subquery()
    newest_old = select(func.max(oldest.c.id)).where(oldest.c.time < before)
    with database.write() as session:
        last = session.scalar(newest_old)
        if last is None:
            return 0
        found: CursorResult[Any] = session.execute(delete(AuditRow).where(AuditRow.id <= last))  # type: ignore[assignment]
        return found.rowcount


def delete_keys(database: Database, *, before: float) -> None:
    """Delete the idempotency keys that were used before a time."""
    with database.write() as session:
        session.execute(delete(IdempotencyRow).where(IdempotencyRow.created_at < before))


__all__ = ["delete_audit", "delete_keys"]
