"""One-time login links in the database, known by the digest of their secret only."""

from __future__ import annotations

from sqlalchemy import delete
from sqlalchemy.engine import CursorResult

from service.store.engine import Database
from service.store.models import LoginLinkRow

LINK_LIFETIME_S = 900.0
"""How long a login link can be used."""


def add_login_link(database: Database, digest: str, now: float) -> float:
    """Store a link and remove those whose time is over; returns when it ends."""
    expires_at = now + LINK_LIFETIME_S
    with database.write() as session:
        session.execute(delete(LoginLinkRow).where(LoginLinkRow.expires_at <= now))
        session.add(LoginLinkRow(digest=digest, expires_at=expires_at))
    return expires_at


def use_login_link(database: Database, digest: str, now: float) -> bool:
    """Remove a link; whether there was one whose time is not over. Of several requests at once one gets True."""
    with database.write() as session:
        found = session.execute(
            delete(LoginLinkRow).where(
                LoginLinkRow.digest == digest,
                LoginLinkRow.expires_at > now,
                # A clock that was set back does not lengthen its life.
                LoginLinkRow.expires_at <= now + LINK_LIFETIME_S,
            )
        )
        return isinstance(found, CursorResult) and found.rowcount == 1
