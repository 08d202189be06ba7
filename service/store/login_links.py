"""One-time login links in the database; only the digest of the secret is stored."""

from __future__ import annotations

from sqlalchemy import delete
from sqlalchemy.engine import CursorResult

from service.store.database import Database
from service.store.models import LoginLinkRow

LINK_LIFETIME_S = 900.0
"""Lifetime of a login link, in seconds."""


def add_login_link(database: Database, digest: str, now: float) -> float:
    """Store a link, remove expired ones, and return the expiry of the new one."""
    expires_at = now + LINK_LIFETIME_S
    with database.write() as session:
        session.execute(delete(LoginLinkRow).where(LoginLinkRow.expires_at <= now))
        session.add(LoginLinkRow(digest=digest, expires_at=expires_at))
    return expires_at


def use_login_link(database: Database, digest: str, now: float) -> bool:
    """Use up a link: True if it existed and had not expired. Only one of several concurrent
    requests gets True.
    """
    with database.write() as session:
        found = session.execute(
            delete(LoginLinkRow).where(
                LoginLinkRow.digest == digest,
                LoginLinkRow.expires_at > now,
                # A clock that was set back does not extend its lifetime.
                LoginLinkRow.expires_at <= now + LINK_LIFETIME_S,
            )
        )
        return isinstance(found, CursorResult) and found.rowcount == 1
