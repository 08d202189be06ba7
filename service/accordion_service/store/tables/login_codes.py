"""The table of codes with which a browser hands a login to a command line."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from accordion_service.store.tables.columns import LongPlainText, PlainText
from accordion_service.store.tables.table_base import Base


class LoginCodeRow(Base):
    """A one-time code for a token of a command line; removed when it is used."""

    __tablename__ = "login_codes"

    digest: Mapped[str] = mapped_column(PlainText(64), primary_key=True)
    """SHA-256 of the code."""
    challenge: Mapped[str] = mapped_column(PlainText(64))
    """SHA-256 of the verifier, which only the command line knows, in base64url."""
    label: Mapped[str] = mapped_column(LongPlainText())
    """Label of the token."""
    token_id: Mapped[str] = mapped_column(PlainText(16))
    """Token of the browser session that added the code; empty for the admin token."""
    expires_at: Mapped[float]
