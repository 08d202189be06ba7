"""Which webhooks get messages."""

from __future__ import annotations

from sqlalchemy import ColumnElement, or_, select

from accordion_service.domain.access import SCOPES_OF_ROLE, Scope
from accordion_service.store.tables.models import DeliveryRow, UserRow, WebhookRow

ALL_USERS = "*"
"""Value of `WebhookRow.jobs_of` for the jobs of all users; no user has this name."""


def has_served_webhook() -> ColumnElement[bool]:
    """Return the condition that the webhook of a delivery gets messages: neither it nor its user is
    disabled, and the user may see the jobs that it is for.
    """
    webhook = select(WebhookRow.id).join(UserRow, UserRow.name == WebhookRow.user)
    webhook = webhook.where(WebhookRow.id == DeliveryRow.webhook_id, *is_served())
    return webhook.correlate(DeliveryRow).exists()


def is_served() -> tuple[ColumnElement[bool], ...]:
    """Return the conditions under which a webhook gets messages, for a query that joins users."""
    roles = [role.value for role, scopes in SCOPES_OF_ROLE.items() if Scope.READ_ALL in scopes]
    return (
        WebhookRow.disabled_at.is_(None),
        UserRow.disabled_at.is_(None),
        or_(WebhookRow.jobs_of != ALL_USERS, UserRow.role.in_(roles)),
    )
