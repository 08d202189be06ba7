"""Deletes rows once they are old: audit entries, idempotency keys, tokens that have ended, failures
of nodes, deliveries of webhooks, and their replaced secrets.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import CursorResult, and_, delete, exists, func, not_, or_, select
from sqlalchemy.orm import aliased

from accordion_service.domain.webhooks.retries import DeliveryState
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.webhooks import has_served_webhook
from accordion_service.store.tables.models import (
    AuditRow,
    DeliveryRow,
    IdempotencyRow,
    NodeFailureRow,
    TokenRow,
    WebhookSecretRow,
)


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


def delete_node_failures(database: Database, *, before: float) -> None:
    """Delete the failures of nodes from before a time."""
    with database.write() as session:
        session.execute(delete(NodeFailureRow).where(NodeFailureRow.time < before))


def delete_replaced_secrets(database: Database, *, before: float) -> None:
    """Delete the replaced secrets of webhooks that have ended before a time."""
    with database.write() as session:
        session.execute(delete(WebhookSecretRow).where(WebhookSecretRow.valid_until < before))


def delete_ended_tokens(database: Database, *, before: float, limit: int) -> None:
    """Delete tokens, at most `limit`, that were revoked, or expired, before a time.

    Those that created another token are kept: a revocation of one of their ancestors reaches that
    token through them.
    """
    ended = or_(TokenRow.revoked_at < before, TokenRow.expires_at < before)
    made = aliased(TokenRow)
    has_made = exists().where(made.made_by == TokenRow.id)
    with database.write() as session:
        ids = session.scalars(select(TokenRow.id).where(ended, not_(has_made)).limit(limit)).all()
        session.execute(delete(TokenRow).where(TokenRow.id.in_(ids)))


def delete_deliveries(
    database: Database, *, delivered_before: float, dead_before: float, limit: int
) -> int:
    """Delete deliveries of webhooks, at most `limit`; return how many were deleted.

    Args:
        database: database of the service.
        delivered_before: time before which the deleted ones succeeded.
        dead_before: time before which the deleted ones were given up, or became due for a webhook
            that is not served: it, or its user, is disabled.
        limit: maximum number.
    """
    old = select(DeliveryRow.id).where(
        or_(
            and_(
                DeliveryRow.state == DeliveryState.DELIVERED, DeliveryRow.done_at < delivered_before
            ),
            and_(DeliveryRow.state == DeliveryState.DEAD, DeliveryRow.done_at < dead_before),
            and_(
                DeliveryRow.state == DeliveryState.PENDING,
                DeliveryRow.next_attempt_at < dead_before,
                not_(has_served_webhook()),
            ),
        )
    )
    # One that is locked is about to change: the next look deletes it if it is still old.
    old = old.order_by(DeliveryRow.id).limit(limit).with_for_update(skip_locked=True)
    with database.write() as session:
        ids = list(session.scalars(old))
        if ids:
            session.execute(delete(DeliveryRow).where(DeliveryRow.id.in_(ids)))
        return len(ids)


__all__ = [
    "delete_audit",
    "delete_deliveries",
    "delete_ended_tokens",
    "delete_keys",
    "delete_node_failures",
    "delete_replaced_secrets",
]
