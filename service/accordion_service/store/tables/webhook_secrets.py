"""The table of replaced secrets of webhooks, with which messages are signed for another day."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from accordion_service.store.tables.columns import LongPlainText, PlainText
from accordion_service.store.tables.table_base import Base


class WebhookSecretRow(Base):
    """A secret of a webhook that was replaced."""

    __tablename__ = "webhook_secrets"
    __table_args__ = (Index(None, "webhook_id"),)

    id: Mapped[str] = mapped_column(PlainText(36), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(
        PlainText(36), ForeignKey("webhooks.id", ondelete="CASCADE")
    )
    encrypted: Mapped[str] = mapped_column(LongPlainText())
    """The secret, as `settings/secret_box.py` encrypts it."""
    valid_until: Mapped[float]
    """When messages are no longer signed with it."""
